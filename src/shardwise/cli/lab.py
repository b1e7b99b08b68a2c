"""Answer a question about distributed training with real runs on this machine, predicted beside measured.

Without NAME the labs are listed. Every run is a training run as `shardwise train` makes it, with torchrun: on GPUs with
models of 1B and 8B parameters, on CPUs with small ones; weights are random and tokens synthetic, since times and
memory are compared. --out keeps the run folders; after an interruption the runs that ended are shown, and --resume goes
on behind them. Labs in one folder share the runs they have in common.
"""

import argparse
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from shardwise.cli.command import EXIT_OK
from shardwise.cli.options import (
    LENGTH_HELP,
    MODEL_HELP,
    add_json_option,
    positive_number,
    sequence_length,
    whole_number,
)
from shardwise.cli.output import require_apart, require_free, stdout_style, write_file, write_line
from shardwise.errors import ShardwiseError, UsageError
from shardwise.train.job import DeviceKind

if TYPE_CHECKING:
    from shardwise.course.labs import Lab, LabSetting, Outcome
    from shardwise.course.labs.run import PlannedTrial
    from shardwise.course.labs.settings import LabRequest
    from shardwise.course.lesson import Lesson

DEFAULT_STEPS = 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """NAME, and what the runs have in common."""
    parser.add_argument("name", nargs="?", metavar="NAME", help="the lab; left out, all are listed")
    add_json_option(parser)
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="keep the run folders (default: they are removed)")
    parser.add_argument("--resume", action="store_true", dest="is_resumed", help="go on with the runs in --out")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page that works offline")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="write the picture")
    parser.add_argument("--force", action="store_true", dest="is_forced", help="overwrite existing files")
    runs = parser.add_argument_group("runs")
    runs.add_argument("--device", choices=get_args(DeviceKind), default="auto", help="(default: GPUs where there are)")
    runs.add_argument("--processes", type=positive_number, metavar="N", help="(default: all GPUs; 2 on CPUs)")
    runs.add_argument("--gpu", metavar="NAME", help="catalogue name of the GPUs here (default: asked of nvidia-smi)")
    runs.add_argument("--model", metavar="MODEL", help=f"of all runs: {MODEL_HELP}")
    runs.add_argument("--larger-model", metavar="MODEL", help="where a lab compares two sizes (default: like --model)")
    runs.add_argument(
        "--steps", type=positive_number, default=DEFAULT_STEPS, metavar="N", help=f"of a run (default: {DEFAULT_STEPS})"
    )
    runs.add_argument(
        "--seq-len",
        type=sequence_length,
        metavar="N",
        help=f"tokens per sequence; {LENGTH_HELP} (default: 4096 on GPUs, else 256)",
    )
    runs.add_argument("--micro-batch-size", type=positive_number, metavar="N", help="of a rank (default: 1)")
    runs.add_argument("--seed", type=whole_number, default=0, metavar="N", help="of weights and data (default: 0)")


def run(arguments: argparse.Namespace) -> int:
    """List the labs, or run one."""
    if arguments.name is None:
        return _list(arguments)
    from shardwise.course.labs import find_lab, lab_setting
    from shardwise.course.labs.run import planned_trials, require_lab_folder

    lab = find_lab(arguments.name)
    for path, example in ((arguments.html, "page.html"), (arguments.svg, "picture.svg")):
        if path is not None:
            require_free(path, is_forced=arguments.is_forced, example=example)
    require_apart({"--html": arguments.html, "--svg": arguments.svg}, (arguments.model, arguments.larger_model))
    if arguments.is_resumed and arguments.out is None:
        raise UsageError(
            "--resume does nothing without --out", code="cli-usage", fix="add --out with the folder of the runs"
        )
    setting = lab_setting(_request(arguments))
    if arguments.out is not None:
        require_lab_folder(arguments.out, is_resumed=arguments.is_resumed)
    with _folder(arguments.out) as folder:
        planned = planned_trials(lab, setting, folder=folder)
        outcomes: list[Outcome] = []
        try:
            _run_all(planned, setting, outcomes)
        except (ShardwiseError, KeyboardInterrupt) as error:
            if outcomes and not arguments.is_json:
                _show(lab, outcomes, setting, arguments)
            if isinstance(error, ShardwiseError) and error.code == "train-stopped":
                raise _stopped(error, arguments.out, num_ended=len(outcomes), num_runs=len(planned)) from error
            raise
        _show(lab, outcomes, setting, arguments)
    return EXIT_OK


def _stopped(error: ShardwiseError, kept: Path | None, *, num_ended: int, num_runs: int) -> ShardwiseError:
    """A lab saves no states: the runs that ended are what a later call goes on behind."""
    found = ShardwiseError(
        f"{error.message.partition(';')[0].replace('run', 'lab', 1)}; {num_ended} of its {num_runs} runs ended"
        + ("" if kept else ", and their folders are removed"),
        code=error.code,
        fix=f"go on with --out {kept} --resume" if kept else "keep runs with --out; --resume goes on behind them",
    )
    found.exit_code = error.exit_code
    return found


def _list(arguments: argparse.Namespace) -> int:
    from shardwise.course.labs import LABS

    named = tuple((lab.name, lab.summary, lab.question) for lab in LABS)
    if arguments.is_json:
        from shardwise.render.json_text import json_text

        listed = [{"name": name, "summary": summary, "question": question} for name, summary, question in named]
        write_line(json_text({"ok": True, "labs": listed}))
    else:
        from shardwise.course.render.text_labs import labs_text

        write_line(labs_text(named, style=stdout_style()))
    return EXIT_OK


def _request(arguments: argparse.Namespace) -> "LabRequest":
    from shardwise.course.labs.settings import LabRequest

    given = {"seq_len": arguments.seq_len, "micro_batch_size": arguments.micro_batch_size}
    return LabRequest(
        device=arguments.device,
        num_processes=arguments.processes,
        model=arguments.model,
        larger_model=arguments.larger_model,
        gpu=arguments.gpu,
        num_steps=arguments.steps,
        seed=arguments.seed,
        recipe={name: value for name, value in given.items() if value is not None},
    )


@contextmanager
def _folder(asked: Path | None) -> Iterator[Path]:
    """Where the runs write: the folder that was asked for, or one that goes away."""
    if asked is not None:
        yield asked
        return
    with tempfile.TemporaryDirectory(prefix="shardwise-lab-") as folder:
        yield Path(folder)


def _run_all(planned: "tuple[PlannedTrial, ...]", setting: "LabSetting", outcomes: "list[Outcome]") -> None:
    """Each trial under a progress bar; what came out so far is in ``outcomes`` whatever happens."""
    from shardwise.cli.progress import step_bar
    from shardwise.course.labs import run_lab

    for number, trial in enumerate(planned, start=1):
        label = f"{number}/{len(planned)} {trial.trial.name}: "
        with step_bar(total=setting.num_steps, label=label) as on_step:
            outcomes.extend(run_lab((trial,), setting, on_step=on_step))


def _show(lab: "Lab", outcomes: "list[Outcome]", setting: "LabSetting", arguments: argparse.Namespace) -> None:
    from shardwise.course.labs import lab_lesson

    lesson = lab_lesson(lab, outcomes, setting)
    if arguments.is_json:
        from shardwise.course.render.json_lesson import lab_object
        from shardwise.render.json_text import json_text

        is_complete = len(outcomes) == len(lab.trials(setting.num_processes, setting.is_default_size))
        write_line(json_text(lab_object(lesson, [_run_object(found) for found in outcomes], is_complete=is_complete)))
    else:
        from shardwise.course.render.text_lesson import lessons_text

        write_line(lessons_text([lesson], style=stdout_style()))
    _write_files(lesson, arguments)


def _run_object(outcome: "Outcome") -> dict[str, object]:
    from shardwise.render.json_records import prediction_object

    return {
        "name": outcome.trial.name,
        "run_folder": str(outcome.folder),
        "failure": outcome.failure or None,
        "prediction": prediction_object(plan=outcome.plan, prediction=outcome.prediction),
        "measurement": outcome.measurement,
    }


def _write_files(lesson: "Lesson", arguments: argparse.Namespace) -> None:
    if arguments.html is not None:
        from shardwise.course.render.html_lesson import lessons_html

        write_file(arguments.html, lessons_html([lesson]), is_forced=arguments.is_forced, example="page.html")
    if arguments.svg is not None:
        from shardwise.course.render.svg_lesson import lessons_svg

        write_file(arguments.svg, lessons_svg([lesson]), is_forced=arguments.is_forced, example="picture.svg")

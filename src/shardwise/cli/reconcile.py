"""Lay runs beside their predictions: our own run folders, or another trainer's log and its plan; and learn from them.

Logs of torchtitan, Megatron-LM, DeepSpeed, the Hugging Face Trainer and Lightning are read, and nvidia-smi's CSV. The
median leaves the first steps out. A log that says another batch, length or number of GPUs than the plan is warned of.

--calibration predicts with what is known of the machine, --out writes what follows from the runs: factors for compute,
host, communication and memory, drawn towards 1 while runs are few. A run whose prediction they make worse is named.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from shardwise.cli.command import EXIT_OK
from shardwise.cli.options import add_calibration_option, add_foreign_options, add_json_option
from shardwise.cli.output import require_apart, require_free, stdout_style, write_file, write_line
from shardwise.errors import UsageError

if TYPE_CHECKING:
    from shardwise.plan import Plan
    from shardwise.reconcile.calibration import LearnedCalibration
    from shardwise.reconcile.totals import Reconciliation

RUN_FILES = ("plan.json", "prediction.json", "measurement.json", "metrics.jsonl", "job.json", "output.log")
"""What a run folder holds of its run."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The runs and, for logs, their plan."""
    parser.add_argument(
        "runs", type=Path, nargs="+", metavar="RUN", help="run folder, measurement.json, or a trainer's log"
    )
    add_json_option(parser)
    parser.add_argument(
        "--plan",
        type=Path,
        action="append",
        default=[],
        metavar="PLAN",
        help="what was run (default: plan.json in the run folder); of another tool's files each with --plan",
    )
    add_foreign_options(parser)
    add_calibration_option(parser)
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the calibration that follows from the runs")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page with both timelines of one run")
    parser.add_argument("--force", action="store_true", dest="is_forced", help="overwrite an existing file")


def run(arguments: argparse.Namespace) -> int:
    """Print the rows that both sides state and, where a calibration is asked for, what the runs teach."""
    if arguments.out is not None:
        require_free(arguments.out, is_forced=arguments.is_forced, example="calibration.json")
    _require_page(arguments)
    _require_apart(arguments)
    found = [_reconciled(path, arguments) for path in arguments.runs]
    learned = _learned(found, arguments) if arguments.out is not None or arguments.calibration is not None else None
    if arguments.is_json:
        from shardwise.render.json_answers import reconciliation_object
        from shardwise.render.json_text import json_text

        write_line(json_text(reconciliation_object(found, learned)))
    else:
        write_line(_text(found, learned))
    if learned is not None and arguments.out is not None:
        from shardwise.calibration_file import calibration_object
        from shardwise.render.json_text import json_text

        write_file(
            arguments.out,
            json_text(calibration_object(learned.calibration)),
            is_forced=arguments.is_forced,
            example="calibration.json",
        )
    if arguments.html is not None:
        _write_page(found[0], arguments)
    return EXIT_OK


def _require_apart(arguments: argparse.Namespace) -> None:
    """Return when nothing that is read is overwritten or counted twice."""
    folders = [run if run.is_dir() else run.parent for run in arguments.runs]
    inside = (folder.joinpath(name) for folder in folders for name in RUN_FILES)
    read = (*arguments.runs, *inside, *arguments.plan, arguments.calibration)
    require_apart({"--out": arguments.out, "--html": arguments.html}, read)
    twice = next((run for index, run in enumerate(arguments.runs) if _is_among(run, arguments.runs[:index])), None)
    if twice is not None:
        raise UsageError(f"the run '{twice}' is named twice", code="cli-usage", fix=f"name {twice} once")


def _is_among(run: Path, others: "Sequence[Path]") -> bool:
    return any(run.resolve() == other.resolve() for other in others)


def _require_page(arguments: argparse.Namespace) -> None:
    """Return when a page can be written, if one is asked for."""
    if arguments.html is None:
        return
    require_free(arguments.html, is_forced=arguments.is_forced, example="page.html")
    if len(arguments.runs) > 1:
        raise UsageError(
            f"a page shows one run, and {len(arguments.runs)} are named",
            code="cli-usage",
            fix="name one run with --html, the others in commands of their own",
        )


def _write_page(found: "Reconciliation", arguments: argparse.Namespace) -> None:
    from shardwise.predict.timeline import predict_timeline
    from shardwise.reconcile.measured_timeline import measured_timeline
    from shardwise.render.html_reconciliation import reconciliation_html

    (run,) = arguments.runs
    predicted = predict_timeline(found.plan)
    drawn = [(rank.rank, rank.stage) for rank in predicted.ranks]
    measured = measured_timeline(run if run.is_dir() else run.parent, ranks=drawn)
    page = reconciliation_html(found, predicted=predicted, measured=measured)
    write_file(arguments.html, page, is_forced=arguments.is_forced, example="page.html")


def _reconciled(path: Path, arguments: argparse.Namespace) -> "Reconciliation":
    from shardwise.ask.plans import calibrated
    from shardwise.predict import predict
    from shardwise.reconcile.measured import measured_totals, require_run
    from shardwise.reconcile.totals import reconcile

    require_run(path)
    plan = calibrated(_plan_of_run(path, arguments), arguments.calibration)
    found = reconcile(plan, predict(plan), measured_totals(path, plan))
    if not found.rows:
        raise UsageError(
            f"'{path}' states neither a rate nor a peak of memory",
            code="reconcile-no-measurement",
            fix="give a log with step times, or the CSV of nvidia-smi's memory.used",
        )
    return found


def _learned(found: "Sequence[Reconciliation]", arguments: argparse.Namespace) -> "LearnedCalibration":
    from shardwise.reconcile.calibration import learn
    from shardwise.reconcile.machine import base_calibration
    from shardwise.reconcile.records import run_record

    base = base_calibration(arguments.runs, found[0].plan.cluster)
    records = [
        run_record(str(path), one.plan, one.measured, base) for path, one in zip(arguments.runs, found, strict=True)
    ]
    return learn(base, records)


def _text(found: "Sequence[Reconciliation]", learned: "LearnedCalibration | None") -> str:
    from shardwise.render.learned_calibration import learned_text
    from shardwise.render.reconciliation import reconciliation_text

    parts = [reconciliation_text(one, style=stdout_style()) for one in found]
    if learned is not None:
        parts.append(learned_text(learned, style=stdout_style()))
    return "\n".join(parts)


def _plan_of_run(run: Path, arguments: argparse.Namespace) -> "Plan":
    from shardwise.ask.plans import plan_of

    folder = run if run.is_dir() else run.parent
    source, *others = arguments.plan or [folder / "plan.json"]
    if not arguments.plan and not source.exists():
        raise UsageError(
            f"what '{run}' ran is not known: there is no plan.json beside it",
            code="cli-usage",
            fix="add --plan plan.json",
        )
    return plan_of(
        source,
        None,
        {},
        others=others,
        named_model=arguments.named_model,
        named_cluster=arguments.named_cluster,
    )

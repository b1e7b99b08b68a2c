"""Train the plan for real, on PyTorch: torchrun on this machine, or the command for many nodes.

PLAN may be a recipe: a file with the plan and all options of the run. Every run folder keeps its own, which --resume
alone reads. The plan is predicted first; the run folder then holds recipe, plan, prediction, job, metrics and
measurement, and the end shows predicted beside measured. Without --data the tokens are synthetic. A plan on several
nodes is not started: the script that every node runs is written into the run folder.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from shardwise.ask.idle_options import require_read
from shardwise.cli.command import EXIT_OK
from shardwise.cli.data_options import data_spec
from shardwise.cli.optimizer_options import given_optimizer
from shardwise.cli.options import (
    add_calibration_option,
    add_json_option,
    add_launcher_option,
    add_layout_options,
    add_plan_source,
    add_recipe_options,
)
from shardwise.cli.output import stdout_style, write_line, write_note
from shardwise.cli.plan_source import calibrated_plan_from
from shardwise.cli.recipe_file import keep_recipe, without_idle
from shardwise.cli.routing_options import given_routing
from shardwise.cli.train_options import NUM_KEPT, RUN_ROWS, add_run_options
from shardwise.cli.validation_options import validation_spec

if TYPE_CHECKING:
    from shardwise.errors import ShardwiseError
    from shardwise.launch.dry_run import DryLook
    from shardwise.launch.lint_case import LintFinding
    from shardwise.launch.request import TrainRequest
    from shardwise.plan import Plan
    from shardwise.prediction import Prediction
    from shardwise.train.decoder.shapes import Shape
    from shardwise.train.job import Job
    from shardwise.train.lease import Lease


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """PLAN, a recipe, or MODEL and CLUSTER with the options of a plan; and what a run needs besides."""
    add_plan_source(parser, is_optional=True)
    add_calibration_option(parser)
    add_json_option(parser)
    add_run_options(parser)
    add_launcher_option(parser)
    add_recipe_options(parser)
    add_layout_options(parser)
    parser.set_defaults(engine=None)


def run(arguments: argparse.Namespace) -> int:
    """Predict, launch, follow and compare."""
    from shardwise.cli.progress import waiting
    from shardwise.launch.dry_run import look_around
    from shardwise.launch.folder import choose_run_folder, gone_when_refused, held_folder, make_run_folder
    from shardwise.launch.inputs import require_inputs, require_resumed_data
    from shardwise.launch.request import prepare_data, require_native
    from shardwise.launch.support import require_supported
    from shardwise.launch.surroundings import require_allocator, require_recorders, uses_gpus
    from shardwise.predict import predict
    from shardwise.rules import require_valid
    from shardwise.train.lease import require_free

    plan = calibrated_plan_from(arguments)
    arguments = without_idle(RUN_ROWS, arguments, plan)
    require_read(RUN_ROWS, arguments, plan)
    require_native(plan)
    require_supported(plan)
    is_here = plan.cluster.num_nodes == 1 and not arguments.is_dry and arguments.launcher is None
    require_recorders(tensorboard=arguments.tensorboard is not None, wandb=arguments.wandb is not None)
    if arguments.has_memory_snapshot:
        require_allocator(is_on_gpu=uses_gpus(arguments.device) or (arguments.device == "auto" and not is_here))
    require_valid(plan)
    if arguments.is_lint:
        return _print_lint(plan, arguments)
    prediction = predict(plan)
    is_resumed = arguments.resume is not None
    folder = choose_run_folder(plan, asked=arguments.out, is_resumed=is_resumed)
    job, shapes = _checked_job(plan, arguments, folder=folder, prediction=prediction)
    require_free(job)
    if is_here and not arguments.shows_batch:
        _require_surroundings(plan, job, arguments)
    said: tuple[str, ...] = ()
    sees_paths = plan.cluster.num_nodes == 1  # a command for many nodes may name what only they can see
    require_inputs(job, shapes, sees_paths=sees_paths)
    if sees_paths:
        with waiting("reading the data"):
            if is_here or arguments.shows_batch:
                said = prepare_data(job)
            require_resumed_data(job)
    for sentence in said:
        write_note(sentence)
    if arguments.shows_batch:
        return _print_batch(job, arguments)
    if not is_here:
        seen = look_around(plan, job)
        with gone_when_refused(folder):
            make_run_folder(plan, asked=folder, is_resumed=is_resumed)
            _keep(job, arguments, plan, prediction)
            return _write_command(job, plan, seen, arguments)
    with gone_when_refused(folder), held_folder(job) as lease:
        make_run_folder(plan, asked=folder, is_resumed=is_resumed)
        _keep(job, arguments, plan, prediction)
        return _launch(job, plan, prediction, arguments, lease)


@contextmanager
def _naming(source: str) -> Iterator[None]:
    """Within, what a model's config cannot be is said of the file or name that the command line has."""
    from shardwise.errors import ModelError

    try:
        yield
    except ModelError as error:
        raise ModelError(f"{source}: {error.message}", code=error.code, fix=error.fix) from error


def _print_batch(job: "Job", arguments: argparse.Namespace) -> int:
    from shardwise.launch.shown_batch import shown_batch
    from shardwise.render.json_answers import batch_object
    from shardwise.render.json_text import json_text
    from shardwise.render.text_batch import batch_text

    samples = shown_batch(job)
    write_line(json_text(batch_object(samples)) if arguments.is_json else batch_text(samples))
    return EXIT_OK


def _print_lint(plan: "Plan", arguments: argparse.Namespace) -> int:
    from shardwise.launch.lint import SurroundingsError, errors_of, refused
    from shardwise.render.json_answers import lint_object
    from shardwise.render.json_text import json_text
    from shardwise.render.lint import lint_text

    errors, job = _what_a_run_is_refused_for(plan, arguments)
    findings = (*refused(errors), *_lint(plan, job, arguments))
    write_line(json_text(lint_object(findings)) if arguments.is_json else lint_text(findings))
    return SurroundingsError.exit_code if errors_of(findings) else EXIT_OK


def _what_a_run_is_refused_for(
    plan: "Plan", arguments: argparse.Namespace
) -> "tuple[list[ShardwiseError], Job | None]":
    """All that can be looked at without writing or tokenising, and the job where the plan and the model make one."""
    from shardwise.errors import ShardwiseError
    from shardwise.launch.folder import choose_run_folder
    from shardwise.launch.inputs import input_errors

    errors: list[ShardwiseError] = []
    folder = Path()  # whatever is wrong with the one that was asked for is said once
    try:
        folder = choose_run_folder(plan, asked=arguments.out, is_resumed=arguments.resume is not None)
    except ShardwiseError as error:
        errors.append(error)
    try:
        job, shapes = _checked_job(plan, arguments, folder=folder, prediction=None)
    except ShardwiseError as error:
        return [*errors, error], None
    return [*errors, *input_errors(job, shapes, sees_paths=plan.cluster.num_nodes == 1)], job


def _checked_job(
    plan: "Plan", arguments: argparse.Namespace, *, folder: Path, prediction: "Prediction | None"
) -> "tuple[Job, Mapping[str, Shape] | None]":
    """The job, which ranks can build the model of and divide it, and that model's parameters where they are known."""
    from shardwise.launch.buildable import model_shapes
    from shardwise.launch.patterns import require_patterns
    from shardwise.launch.request import make_job
    from shardwise.launch.support import require_attention, require_documents, require_generation
    from shardwise.train.divisible import require_divisible

    request = _request(plan, arguments, folder=folder.resolve())
    with _naming(arguments.source):
        job = make_job(plan, request, prediction=prediction, run_folder=str(folder.resolve()))
        require_attention(job)
        require_documents(job)
        require_divisible(job)
        require_generation(job)
        shapes = model_shapes(job)
        require_patterns(job, shapes)
        return job, shapes


def _require_surroundings(plan: "Plan", job: "Job", arguments: argparse.Namespace) -> None:
    """Warn about what will be felt, and refuse what cannot work."""
    from shardwise.launch.lint import require_no_errors, warnings_of

    findings = _lint(plan, job, arguments)
    require_no_errors(findings)
    _warn(warnings_of(findings))


def _warn(warnings: "Sequence[LintFinding]") -> None:
    from shardwise.render.lint import lint_text

    if warnings:
        write_note(lint_text(warnings))


def _lint(plan: "Plan", job: "Job | None", arguments: argparse.Namespace) -> "tuple[LintFinding, ...]":
    from shardwise.launch.lint import lint
    from shardwise.launch.support import packages_of
    from shardwise.launch.surroundings import read_surroundings, uses_gpus

    return lint(
        plan,
        read_surroundings(run_folder=arguments.out or Path()),
        is_on_gpu=uses_gpus(arguments.device),
        is_device_asked=arguments.device != "auto",
        saves_states=arguments.checkpoint_every is not None,
        packages=packages_of(job) if job is not None else (),
    )


def _request(plan: "Plan", arguments: argparse.Namespace, *, folder: Path) -> "TrainRequest":
    from shardwise.launch.request import TrainRequest
    from shardwise.launch.surroundings import uses_gpus
    from shardwise.train.job import CheckpointSpec, WatchSpec
    from shardwise.train.pretrained.files import weights_digest

    saves = arguments.checkpoint_every is not None or arguments.export is not None
    states = arguments.checkpoints or folder / "checkpoints"

    return TrainRequest(
        num_steps=arguments.steps,
        seed=arguments.seed,
        is_deterministic=arguments.is_deterministic,
        device=arguments.device,
        is_on_gpu=arguments.is_dry or uses_gpus(arguments.device),
        implementation=arguments.implementation,
        timeout_s=arguments.timeout,
        num_restarts=arguments.restarts,
        data=data_spec(arguments),
        checkpoint=CheckpointSpec(
            folder=_absolute(states) if saves else None,
            every_steps=arguments.checkpoint_every or 0,
            is_async=arguments.is_async,
            num_kept=arguments.keep or NUM_KEPT,
            resume_from=_absolute(arguments.resume),
            initial_weights=_absolute(arguments.weights),
            weights_digest=weights_digest(arguments.weights) if arguments.weights else None,
            accepts_random_weights=arguments.accepts_random_weights,
            export_folder=_absolute(arguments.export),
            is_merged=arguments.is_merged,
        ),
        optimizer=given_optimizer(arguments, plan),
        routing=given_routing(arguments),
        watch=WatchSpec(
            every_steps=arguments.profile_every or 0,
            is_memory_sampled=True,
            has_memory_snapshot=arguments.has_memory_snapshot,
            tensorboard=_absolute(arguments.tensorboard),
            wandb=arguments.wandb,
        ),
        validation=validation_spec(arguments),
    )


def _absolute(path: "Path | str | None") -> str | None:
    """Workers may run in another folder."""
    return str(Path(path).resolve()) if path is not None else None


def _keep(job: "Job", arguments: argparse.Namespace, plan: "Plan", prediction: "Prediction") -> None:
    """Write the recipe of the run and its prediction into the run folder; a resume finds the tokenizer there."""
    from shardwise.plan_file import plan_to_json
    from shardwise.render.json_records import prediction_object
    from shardwise.render.json_text import json_text
    from shardwise.train.failure.full_disk import writing

    options, tokenizer = arguments.recipe_options, job.data.tokenizer
    if tokenizer is not None:
        options = {**options, "data": {**options.get("data", {}), "tokenizer": tokenizer}}
    keep_recipe(job.folder, options, plan_to_json(plan))
    text, path = json_text(prediction_object(plan=plan, prediction=prediction)), job.folder / "prediction.json"
    with writing(path):
        path.write_text(text + "\n", encoding="utf-8")


def _write_command(job: "Job", plan: "Plan", seen: "DryLook", arguments: argparse.Namespace) -> int:
    from shardwise.launch.command import SCRIPT_FILE, command_text
    from shardwise.launch.launchers import launcher_files, native_start
    from shardwise.render.json_text import json_text
    from shardwise.render.text_training import command_lines
    from shardwise.train.beginning import beginning
    from shardwise.train.failure.full_disk import writing
    from shardwise.train.job import write_job

    files = launcher_files(native_start(plan, job), arguments.launcher) if arguments.launcher else ()
    script, begins_with = job.folder.joinpath(SCRIPT_FILE), beginning(job)
    launchers = [job.folder.joinpath(file.name) for file in files]
    with writing(job.folder):
        write_job(job)
        is_uneven = plan.cluster.num_missing_gpus > 0
        text = command_text(job, num_nodes=plan.cluster.num_nodes, is_uneven=is_uneven)
        script.write_text(text, encoding="utf-8")
        for path, file in zip(launchers, files, strict=True):
            path.write_text(file.text, encoding="utf-8")
    script.chmod(0o755)
    _warn(seen.warnings)
    if arguments.is_json:
        answer = {"ok": True, "run_folder": str(job.folder), "script": str(script), "inputs": begins_with}
        answer["launcher_files"] = [str(path) for path in launchers]
        write_line(json_text({**answer, "missing_here": list(seen.missing), "not_looked_at": list(seen.unseen)}))
    else:
        for line in command_lines(
            script,
            launchers=launchers,
            num_nodes=plan.cluster.num_nodes,
            begins_with=begins_with,
            missing=seen.missing,
            unseen=seen.unseen,
        ):
            write_line(line)
    return EXIT_OK


def _launch(job: "Job", plan: "Plan", prediction: "Prediction", arguments: argparse.Namespace, lease: "Lease") -> int:
    from shardwise.cli.progress import step_bar
    from shardwise.launch.folder import branch_sentence
    from shardwise.launch.lives import run_lives
    from shardwise.launch.report import used_by, write_report
    from shardwise.render.json_records import json_value
    from shardwise.render.json_text import json_text
    from shardwise.render.text_training import training_text
    from shardwise.train.beginning import beginning, said_at_the_start

    write_note(said_at_the_start(job))
    if sentence := branch_sentence(job, lease.lineage):
        write_note(sentence)
    with step_bar(total=job.num_steps) as on_step:
        measured = run_lives(job, on_step=on_step, plan=plan, lease=lease, say=write_note)
    used = used_by(plan, prediction, measured)
    report = write_report(job.folder, plan=plan, prediction=prediction, measured=measured, used=used)
    if arguments.is_json:
        answer = {"ok": True, "run_folder": str(job.folder), "inputs": beginning(job), "measurement": measured}
        answer["report"] = str(report)
        write_line(json_text({**answer, "utilisation": json_value(used)}))
    else:
        style = stdout_style()
        write_line(
            training_text(
                plan=plan, prediction=prediction, measured=measured, used=used, folder=job.folder, style=style
            )
        )
        write_line(f"report     {report}")
    return EXIT_OK

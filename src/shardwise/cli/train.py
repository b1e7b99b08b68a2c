"""Train the plan for real, on PyTorch: torchrun on this machine, or the command for many nodes.

The plan is predicted first; the run folder then holds plan, prediction, job, metrics and measurement, and the end shows
predicted beside measured. Without --data the tokens are synthetic. A plan on several nodes is not started: the script
that every node runs is written into the run folder.
"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from shardwise.cli.command import EXIT_OK
from shardwise.cli.options import (
    add_json_option,
    add_layout_options,
    add_plan_source,
    add_recipe_options,
    amount,
    positive_number,
    whole_number,
)
from shardwise.cli.output import stdout_style, write_line
from shardwise.cli.plan_source import plan_from
from shardwise.train.job import Decay, DeviceKind, Implementation

if TYPE_CHECKING:
    from shardwise.launch.request import TrainRequest
    from shardwise.plan import Plan
    from shardwise.prediction import Prediction
    from shardwise.train.job import Job


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """PLAN, or MODEL and CLUSTER with the options of a recipe and a layout; and what a run needs besides."""
    add_plan_source(parser)
    add_json_option(parser)
    run = parser.add_argument_group("run")
    run.add_argument("--steps", type=positive_number, default=10, metavar="N", help="optimizer steps (default: 10)")
    run.add_argument("--out", type=Path, metavar="FOLDER", help="run folder (default: runs/MODEL-TIME)")
    run.add_argument("--seed", type=whole_number, default=0, metavar="N", help="of weights and data (default: 0)")
    run.add_argument("--device", choices=get_args(DeviceKind), default="auto", help="(default: GPUs where there are)")
    run.add_argument(
        "--implementation",
        choices=get_args(Implementation),
        default="auto",
        help="our decoder or transformers' model (default: ours where it computes the same)",
    )
    run.add_argument("--learning-rate", type=amount, default=3e-4, metavar="RATE", help="(default: 3e-4)")
    run.add_argument("--warmup-steps", type=whole_number, default=0, metavar="N", help="linear warm-up (default: 0)")
    run.add_argument("--decay", choices=get_args(Decay), default="constant", help="after it (default: constant)")
    run.add_argument("--max-grad-norm", type=amount, default=1.0, metavar="NORM", help="0 never clips (default: 1)")
    run.add_argument("--dry-run", action="store_true", dest="is_dry", help="write job and command, start nothing")
    add_recipe_options(parser)
    add_layout_options(parser)
    parser.set_defaults(engine=None)


def run(arguments: argparse.Namespace) -> int:
    """Predict, launch, follow and compare."""
    from shardwise.launch.folder import make_run_folder
    from shardwise.launch.request import make_job, require_native
    from shardwise.predict import predict
    from shardwise.rules import require_valid

    plan = plan_from(arguments)
    require_native(plan)
    require_valid(plan)
    prediction = predict(plan)
    folder = make_run_folder(plan, asked=arguments.out, is_resumed=False)
    job = make_job(plan, _request(arguments), prediction=prediction, run_folder=str(folder.resolve()))
    _keep_prediction(folder, plan, prediction)
    if arguments.is_dry or plan.cluster.num_nodes > 1:
        return _write_command(job, plan, arguments)
    return _launch(job, plan, prediction, arguments)


def _request(arguments: argparse.Namespace) -> "TrainRequest":
    from shardwise.launch.request import TrainRequest
    from shardwise.train.job import OptimizerSpec

    return TrainRequest(
        num_steps=arguments.steps,
        seed=arguments.seed,
        device=arguments.device,
        implementation=arguments.implementation,
        optimizer=OptimizerSpec(
            learning_rate=arguments.learning_rate,
            num_warmup_steps=arguments.warmup_steps,
            decay=arguments.decay,
            max_grad_norm=arguments.max_grad_norm,
        ),
    )


def _keep_prediction(folder: Path, plan: "Plan", prediction: "Prediction") -> None:
    from shardwise.render.json_prediction import prediction_object
    from shardwise.render.json_text import json_text

    text = json_text(prediction_object(plan=plan, prediction=prediction))
    (folder / "prediction.json").write_text(text + "\n", encoding="utf-8")


def _write_command(job: "Job", plan: "Plan", arguments: argparse.Namespace) -> int:
    from shardwise.launch.command import command_text
    from shardwise.render.json_text import json_text
    from shardwise.train.job import write_job

    write_job(job)
    script = job.folder / "run.sh"
    script.write_text(command_text(job, num_nodes=plan.cluster.num_nodes), encoding="utf-8")
    script.chmod(0o755)
    if arguments.is_json:
        write_line(json_text({"ok": True, "run_folder": str(job.folder), "script": str(script)}))
    else:
        write_line(f"wrote {script}: run it on each of {plan.cluster.num_nodes} node(s)")
    return EXIT_OK


def _launch(job: "Job", plan: "Plan", prediction: "Prediction", arguments: argparse.Namespace) -> int:
    from shardwise.cli.progress import step_bar
    from shardwise.launch.run import run_job
    from shardwise.render.json_text import json_text
    from shardwise.render.text_training import training_text

    with step_bar(total=job.num_steps) as on_step:
        measured = run_job(job, on_step=on_step)
    if arguments.is_json:
        write_line(json_text({"ok": True, "run_folder": str(job.folder), "measurement": measured}))
    else:
        write_line(
            training_text(plan=plan, prediction=prediction, measured=measured, folder=job.folder, style=stdout_style())
        )
    return EXIT_OK

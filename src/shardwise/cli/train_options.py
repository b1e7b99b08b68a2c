"""The options of ``train`` that no plan holds: the run, its data, its checkpoints; and the range of every number."""

import argparse
from pathlib import Path
from typing import get_args

from shardwise.ask.idle_options import ROUTING_ROW, IdleOption, IsIdle
from shardwise.cli.data_options import DATA_ROWS, add_data_options
from shardwise.cli.number_range import MANY_STEPS, NumberRange, add_number
from shardwise.cli.optimizer_options import OPTIMIZER_NUMBERS, OPTIMIZER_ROWS, add_optimizer_options
from shardwise.cli.routing_options import ROUTING_NUMBERS, ROUTING_ROWS, add_routing_options
from shardwise.cli.validation_options import VALIDATION_NUMBERS, VALIDATION_ROWS, add_validation_options
from shardwise.plan import Plan
from shardwise.train.job import DeviceKind, Implementation

__all__ = ["NUMBERS", "NUM_KEPT", "RUN_ROWS", "add_run_options"]

MAX_SEED = 9_223_372_036_854_775_807
"""The largest that torch takes."""
NUM_KEPT = 2
"""Checkpoints without --keep: one may turn out to be worthless."""
LONG_S = 10_000_000
"""Nearly four months."""
_PROFILE_HELP = "look into every N-th step: exposed communication, host, idle; traces stay in the run folder"
_WANDB_HELP = "record the run for Weights & Biases as well: offline in the run folder, unless WANDB_MODE says otherwise"
_SNAPSHOT_HELP = "keep the history of CUDA's allocator over the first steps; `profile RUN` reads it"
_TIMEOUT_HELP = "how long a rank waits for the others before the run is ended (default: 600)"
_DEVICE_HELP = "(default: GPUs, or CPUs where the plan is for cpu)"
_DETERMINISTIC_HELP = "equal runs give equal bits on GPUs too; slower"
_DRY_HELP = "check what the run reads, write its job and run.sh into the run folder, start nothing"
_LINT_HELP = "list what the run would be refused for or slowed by: model, paths, surroundings; write and start nothing"
_STEPS_HELP = "optimizer steps in all, those before --resume included (default: 10)"
_ASYNC_HELP = "write while training goes on (with --checkpoint-every)"
_RANDOM_WEIGHTS_HELP = "begin with weights drawn from the seed; adapters are refused without this or --weights"
_MERGE_HELP = "export the whole model, adapters added to --weights, instead of adapters for peft"
_RESTARTS_HELP = (
    "go on from the newest checkpoint up to N times after what a retry can mend, such as a rank that died "
    "(with --checkpoint-every; default: 0)"
)
_WHERE_HELP = "where --checkpoint-every or --export saves (default: checkpoints in the run folder)"


NUMBERS = {
    "--steps": NumberRange(min_value=1, max_value=MANY_STEPS),
    "--seed": NumberRange(min_value=0, max_value=MAX_SEED),
    **OPTIMIZER_NUMBERS,
    **VALIDATION_NUMBERS,
    **ROUTING_NUMBERS,
    "--timeout": NumberRange(min_value=1, max_value=LONG_S, is_whole=False),
    "--profile-every": NumberRange(min_value=1, max_value=MANY_STEPS),
    "--checkpoint-every": NumberRange(min_value=1, max_value=MANY_STEPS),
    "--keep": NumberRange(min_value=1, max_value=MANY_STEPS),
    "--restarts": NumberRange(min_value=0, max_value=1000),
}
"""Every numeric option of ``train`` that is no field of the plan; those of the plan have theirs in ``rules``."""


def _saves_at_no_step(arguments: argparse.Namespace, _: Plan) -> bool:
    return arguments.checkpoint_every is None


def _saves_nothing(arguments: argparse.Namespace, _: Plan) -> bool:
    return arguments.checkpoint_every is None and arguments.export is None


def _resumes_all_weights(arguments: argparse.Namespace, plan: Plan) -> bool:
    """A checkpoint of adapters holds none of the weights that they stand beside."""
    return arguments.resume is not None and plan.recipe.adapter == "none"


def _has_no_adapter(_: argparse.Namespace, plan: Plan) -> bool:
    return plan.recipe.adapter == "none"


def _exports_nothing(arguments: argparse.Namespace, _: Plan) -> bool:
    return arguments.export is None


def _has_no_weights(arguments: argparse.Namespace, _: Plan) -> bool:
    return arguments.weights is None


def _has_weights(arguments: argparse.Namespace, _: Plan) -> bool:
    return arguments.weights is not None


def _has_no_pipeline(_: argparse.Namespace, plan: Plan) -> bool:
    return plan.layout.pp == 1


def _divides_no_matrix(arguments: argparse.Namespace, plan: Plan) -> bool:
    return bool(arguments.sequence_parallel) and plan.layout.tp == 1


def _reduces_nothing(arguments: argparse.Namespace, plan: Plan) -> bool:
    return bool(arguments.defer_grad_reduce) and plan.layout.data_parallel_size == plan.layout.cp == 1


def _has_one_rank(_: argparse.Namespace, plan: Plan) -> bool:
    return plan.layout.world_size == 1


def _gathers_once(arguments: argparse.Namespace, plan: Plan) -> bool:
    return arguments.reshard_after_forward is False and plan.layout.zero_stage < 3


def _launches_nothing(arguments: argparse.Namespace, plan: Plan) -> bool:
    is_on_cpu = arguments.device == "cpu" or (arguments.device == "auto" and plan.cluster.runs_on_cpu)
    return bool(arguments.blocking_launches) and is_on_cpu


def _of_saving(
    option: str, *, dest: str = "", default: object = None, is_idle: IsIdle = _saves_at_no_step
) -> IdleOption:
    return IdleOption(
        option=option,
        dest=dest,
        default=default,
        is_idle=is_idle,
        beside="without --checkpoint-every",
        missing="--checkpoint-every 100",
    )


PLANNED_ROWS = (
    IdleOption(option="--schedule", is_idle=_has_no_pipeline, beside="without a pipeline", missing="--pp 2"),
    IdleOption(
        option="--sequence-parallel",
        is_idle=_divides_no_matrix,
        beside="without tensor parallelism",
        missing="--tp 2",
    ),
    IdleOption(option="--defer-grad-reduce", is_idle=_reduces_nothing, beside="where one rank has all gradients"),
    IdleOption(option="--reduce-dtype", is_idle=_has_one_rank, beside="on one rank, which reduces nothing"),
    IdleOption(
        option="--no-reshard-after-forward",
        dest="reshard_after_forward",
        is_idle=_gathers_once,
        beside="below zero_stage 3, where parameters stay whole from forward to backward",
        missing="--zero-stage 3",
    ),
    IdleOption(option="--blocking-launches", is_idle=_launches_nothing, beside="on CPUs, which launch no kernels"),
    ROUTING_ROW,
)
"""Options that the plan of a run does not read; a search may still take them as bounds."""
RUN_ROWS = (
    _of_saving("--async-checkpoints", dest="is_async", default=False),
    _of_saving("--keep"),
    _of_saving("--restarts", default=0),
    _of_saving("--checkpoints", is_idle=_saves_nothing),
    IdleOption(option="--weights", is_idle=_resumes_all_weights, beside="beside --resume without --adapter"),
    *(
        IdleOption(
            option="--random-weights", dest="accepts_random_weights", default=False, is_idle=is_idle, beside=beside
        )
        for is_idle, beside in (
            (_has_weights, "beside --weights"),
            (_resumes_all_weights, "beside --resume without --adapter"),
        )
    ),
    *(
        IdleOption(
            option="--merge", dest="is_merged", default=False, is_idle=is_idle, beside=f"without {it}", missing=what
        )
        for is_idle, it, what in (
            (_has_no_adapter, "adapters", "--adapter lora"),
            (_exports_nothing, "--export", "--export FOLDER"),
            (_has_no_weights, "--weights to add adapters to", "--weights FOLDER"),
        )
    ),
    *OPTIMIZER_ROWS,
    *ROUTING_ROWS,
    *DATA_ROWS,
    *VALIDATION_ROWS,
    *PLANNED_ROWS,
)
"""Options of ``train`` that belong to another one, or to something in the plan."""


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """What a run needs besides its plan."""
    run = parser.add_argument_group("run")
    add_number(run, NUMBERS, "--steps", default=10, metavar="N", text=_STEPS_HELP)
    run.add_argument("--out", type=Path, metavar="FOLDER", help="run folder (default: runs/MODEL-TIME)")
    add_number(run, NUMBERS, "--seed", default=0, metavar="N", text="of weights, data and dropout (default: 0)")
    run.add_argument("--deterministic", action="store_true", dest="is_deterministic", help=_DETERMINISTIC_HELP)
    run.add_argument("--device", choices=get_args(DeviceKind), default="auto", help=_DEVICE_HELP)
    run.add_argument(
        "--implementation",
        choices=get_args(Implementation),
        default="auto",
        help="our decoder or transformers' model (default: ours where it computes the same)",
    )
    add_number(run, NUMBERS, "--timeout", default=600.0, metavar="SECONDS", text=_TIMEOUT_HELP)
    run.add_argument("--dry-run", action="store_true", dest="is_dry", help=_DRY_HELP)
    run.add_argument("--lint", action="store_true", dest="is_lint", help=_LINT_HELP)
    add_data_options(parser.add_argument_group("data"))
    add_validation_options(parser.add_argument_group("validation"))
    add_optimizer_options(parser.add_argument_group("optimizer"))
    add_routing_options(parser.add_argument_group("experts"))
    _add_checkpoint_options(parser.add_argument_group("checkpoints"))
    _add_watch_options(parser.add_argument_group("watch"))


def _add_watch_options(watch: "argparse._ArgumentGroup") -> None:
    add_number(watch, NUMBERS, "--profile-every", default=None, metavar="N", text=_PROFILE_HELP)
    watch.add_argument("--memory-snapshot", action="store_true", dest="has_memory_snapshot", help=_SNAPSHOT_HELP)
    watch.add_argument("--tensorboard", type=Path, metavar="FOLDER", help="write TensorBoard's events there as well")
    watch.add_argument("--wandb", metavar="PROJECT", help=_WANDB_HELP)


def _add_checkpoint_options(group: "argparse._ArgumentGroup") -> None:
    add_number(
        group,
        NUMBERS,
        "--checkpoint-every",
        default=None,
        metavar="N",
        text="save every N steps, at the end, and when the run is asked to stop (Ctrl-C, SIGTERM)",
    )
    group.add_argument("--checkpoints", type=Path, metavar="FOLDER", help=_WHERE_HELP)
    group.add_argument("--async-checkpoints", action="store_true", dest="is_async", help=_ASYNC_HELP)
    add_number(
        group,
        NUMBERS,
        "--keep",
        default=None,
        metavar="N",
        text="newest ones to keep (default: 2)",
    )
    add_number(group, NUMBERS, "--restarts", default=0, metavar="N", text=_RESTARTS_HELP)
    group.add_argument("--resume", type=Path, metavar="PATH", help="go on from a run, its checkpoints, or one of them")
    group.add_argument("--weights", type=Path, metavar="FOLDER", help="begin with a Hugging Face checkpoint")
    group.add_argument(
        "--random-weights", action="store_true", dest="accepts_random_weights", help=_RANDOM_WEIGHTS_HELP
    )
    group.add_argument("--export", type=Path, metavar="FOLDER", help="end with a Hugging Face checkpoint")
    group.add_argument("--merge", action="store_true", dest="is_merged", help=_MERGE_HELP)

"""The options of ``train`` that say how the optimizer steps: its numbers, its schedule, and groups of parameters."""

import argparse
from contextlib import suppress
from dataclasses import replace
from typing import get_args

from shardwise.ask.idle_options import IdleOption
from shardwise.cli.number_range import MANY_STEPS, NumberRange, add_number
from shardwise.errors import CheckpointError
from shardwise.optimizers import OPTIMIZERS, TrainerOption
from shardwise.plan import Plan
from shardwise.train.job import Decay, OptimizerSpec, usual_warmup_steps

__all__ = ["OPTIMIZER_NUMBERS", "OPTIMIZER_ROWS", "add_optimizer_options", "given_optimizer"]

BELOW_ONE = 0.999999999
"""A mean that never forgets divides by zero."""
OPTIMIZER_NUMBERS = {
    "--learning-rate": NumberRange(min_value=0, is_whole=False),
    "--warmup-steps": NumberRange(min_value=0, max_value=MANY_STEPS),
    "--decay-steps": NumberRange(min_value=1, max_value=MANY_STEPS),
    "--min-learning-rate-ratio": NumberRange(min_value=0, max_value=1, is_whole=False),
    "--weight-decay": NumberRange(min_value=0, max_value=1, is_whole=False),
    "--beta1": NumberRange(min_value=0, max_value=BELOW_ONE, is_whole=False),
    "--beta2": NumberRange(min_value=0, max_value=BELOW_ONE, is_whole=False),
    "--eps": NumberRange(min_value=0, max_value=1, is_whole=False),
    "--max-grad-norm": NumberRange(min_value=0, is_whole=False),
}
_RATE_HELP = (
    "(default: 3e-4 from random weights, 2e-5 from --weights, 2e-4 for adapters; that of the run with --resume)"
)
_WEIGHT_DECAY_HELP = "(default: 0.1, and 0 for adapters; that of the run with --resume)"
_FLOOR_HELP = "floor of a decaying rate over its peak (default: 0.1)"
_WARMUP_HELP = "linear warm-up (default: 3 per cent of --steps, at most 100; that of the run with --resume)"
_DECAY_HELP = (
    "after it; wsd holds the rate and lets it fall at the end (default: constant; that of the run with --resume)"
)
_LAST_HELP = "last steps in which the rate of wsd falls (default: a tenth of --steps)"
_GROUP_HELP = "peak rate of parameters by name, such as 'lm_head.*=1e-4'; repeatable, the first that fits counts"
_UNDECAYED_HELP = "names that weight decay spares besides norms, biases and other vectors; repeatable: '*embed_tokens*'"


def _pattern_and_rate(text: str) -> tuple[str, float]:
    pattern, _, rate = text.rpartition("=")
    if not pattern:
        raise argparse.ArgumentTypeError(f"'{text[:40]}' is not PATTERN=RATE such as lm_head.*=1e-4")
    return pattern, OPTIMIZER_NUMBERS["--learning-rate"].read(rate)


def _never_clips(_: argparse.Namespace, plan: Plan) -> bool:
    return not plan.recipe.clip_gradients


def _never_decays(arguments: argparse.Namespace, plan: Plan) -> bool:
    return given_optimizer(arguments, plan).decay == "constant"


def _has_no_last_steps(arguments: argparse.Namespace, plan: Plan) -> bool:
    return given_optimizer(arguments, plan).decay != "wsd"


def _not_read_by_optimizer(option: str, *read_as: TrainerOption) -> IdleOption:
    """The row of a number that only optimizers read whose class takes one of these arguments."""
    readers = [name for name, kind in OPTIMIZERS.items() if {*kind.trainer_options} & {*read_as}]
    return IdleOption(
        option=option,
        is_idle=lambda _, plan: plan.recipe.optimizer not in readers,
        beside=f"with an optimizer other than {', '.join(readers)}",
    )


OPTIMIZER_ROWS = (
    IdleOption(
        option="--max-grad-norm",
        is_idle=_never_clips,
        beside="in a plan that never clips",
        missing="--clip-gradients",
    ),
    IdleOption(
        option="--min-learning-rate-ratio",
        is_idle=_never_decays,
        beside="with a constant learning rate",
        missing="--decay cosine",
    ),
    IdleOption(
        option="--decay-steps",
        is_idle=_has_no_last_steps,
        beside="with a schedule that decays in all steps or in none",
        missing="--decay wsd",
    ),
    _not_read_by_optimizer("--beta1", "betas", "momentum"),
    _not_read_by_optimizer("--beta2", "betas"),
    _not_read_by_optimizer("--eps", "eps"),
)
"""Options of the optimizer that the plan's optimizer or the schedule does not read."""


def add_optimizer_options(group: "argparse._ArgumentGroup") -> None:
    """Add the options that say how the plan's optimizer steps and how its learning rate changes."""
    numbers = OPTIMIZER_NUMBERS
    add_number(group, numbers, "--learning-rate", default=None, metavar="RATE", text=_RATE_HELP)
    add_number(group, numbers, "--warmup-steps", default=None, metavar="N", text=_WARMUP_HELP)
    group.add_argument("--decay", choices=get_args(Decay), help=_DECAY_HELP)
    add_number(group, numbers, "--decay-steps", default=None, metavar="N", text=_LAST_HELP)
    add_number(group, numbers, "--min-learning-rate-ratio", default=None, metavar="RATIO", text=_FLOOR_HELP)
    add_number(group, numbers, "--weight-decay", default=None, metavar="SHARE", text=_WEIGHT_DECAY_HELP)
    group.add_argument("--undecayed", action="append", metavar="PATTERN", help=_UNDECAYED_HELP)
    group.add_argument(
        "--group-rate", action="append", type=_pattern_and_rate, metavar="PATTERN=RATE", help=_GROUP_HELP
    )
    add_number(group, numbers, "--beta1", default=None, metavar="SHARE", text="or momentum (default: 0.9)")
    add_number(group, numbers, "--beta2", default=None, metavar="SHARE", text="(default: 0.95)")
    add_number(group, numbers, "--eps", default=None, metavar="N", text="added to the divisor (default: 1e-8)")
    add_number(group, numbers, "--max-grad-norm", default=None, metavar="NORM", text="0 never clips (default: 1)")


def _usual(arguments: argparse.Namespace, plan: Plan) -> OptimizerSpec:
    """The arguments for options that are not given: those of the resumed run, or the usual ones for these weights.

    Source: 2e-5 for weights that were trained before (Touvron et al. 2023, arXiv:2307.09288, section 3.1, with a weight
    decay of 0.1), 2e-4 for adapters (Dettmers et al. 2023, arXiv:2305.14314, appendix B). Decay would pull
    adapters, which hold all that is learned, towards none.
    """
    from shardwise.train.checkpoint.folder import find_checkpoint
    from shardwise.train.checkpoint.origin import origin_of

    if arguments.resume is not None:
        with suppress(CheckpointError):  # said where the checkpoint is looked at, if this machine sees it
            if (origin := origin_of(find_checkpoint(arguments.resume))) is not None:
                spec, did_clip = origin.job.optimizer, origin.job.recipe.clip_gradients
                return spec if did_clip else replace(spec, max_grad_norm=OptimizerSpec().max_grad_norm)
    begun = OptimizerSpec(num_warmup_steps=usual_warmup_steps(arguments.steps))
    if plan.recipe.adapter != "none":
        return replace(begun, learning_rate=2e-4, weight_decay_fraction=0.0)
    return replace(begun, learning_rate=2e-5) if arguments.weights is not None else begun


def given_optimizer(arguments: argparse.Namespace, plan: Plan) -> OptimizerSpec:
    """The numbers and the schedule of the optimizer: what the options give, and the usual of the rest."""
    given = {
        "learning_rate": arguments.learning_rate,
        "weight_decay_fraction": arguments.weight_decay,
        "beta_1_fraction": arguments.beta1,
        "beta_2_fraction": arguments.beta2,
        "epsilon": arguments.eps,
        "max_grad_norm": arguments.max_grad_norm,
        "num_warmup_steps": arguments.warmup_steps,
        "decay": arguments.decay,
        "num_decay_steps": arguments.decay_steps,
        "min_learning_rate_ratio": arguments.min_learning_rate_ratio,
        "undecayed": arguments.undecayed and tuple(arguments.undecayed),
        "group_rates": arguments.group_rate and tuple(arguments.group_rate),
    }
    return replace(_usual(arguments, plan), **{name: value for name, value in given.items() if value is not None})

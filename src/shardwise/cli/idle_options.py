"""Options that nothing would read, because what they belong to is missing or replaced: refused instead of ignored."""

import argparse
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from shardwise.cli.command import UsageError
from shardwise.engines.table import engine_profile
from shardwise.model import AttentionSpec
from shardwise.plan import Plan
from shardwise.rules.recompute_modules import MODULE_ENGINES

__all__ = ["ANSWER_ROWS", "RECIPE_ROWS", "IdleOption", "IsIdle", "require_read"]

IsIdle = Callable[[argparse.Namespace, Plan], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleOption:
    """An option, and when it does nothing."""

    option: str
    dest: str
    """Where the parser keeps its value."""
    default: object = None
    """The value that stands for an option that was not given."""
    is_idle: IsIdle
    beside: str
    """What it does nothing without, or beside, as the sentence ends: ``without --checkpoint-every``."""
    missing: str = ""
    """What to add; empty where only leaving it out helps."""

    def is_given(self, arguments: argparse.Namespace) -> bool:
        """Whether the command line has the option; not every command has every one."""
        return bool(vars(arguments).get(self.dest, self.default) != self.default)


def require_read(rows: Iterable[IdleOption], arguments: argparse.Namespace, plan: Plan) -> None:
    """Return when every option of the rows that was given has something to act on.

    Raises:
        UsageError: one would be ignored.
    """
    for row in rows:
        if row.is_given(arguments) and row.is_idle(arguments, plan):
            raise UsageError(
                f"{row.option} does nothing {row.beside}",
                code="cli-usage",
                fix=f"add {row.missing}, or leave out {row.option}" if row.missing else f"leave out {row.option}",
            )


def _has_no_adapter(_: argparse.Namespace, plan: Plan) -> bool:
    return plan.recipe.adapter == "none"


def _recomputes_nothing(arguments: argparse.Namespace, plan: Plan) -> bool:
    """A search, which has no ``--recompute`` of one value, tries the kinds of recomputation by itself."""
    return "recompute" in vars(arguments) and plan.recipe.recompute == "none"


def _always_overlaps(arguments: argparse.Namespace, plan: Plan) -> bool:
    """Its opposite is refused by a rule, which says that there is no choice."""
    return bool(arguments.overlap_grad_reduce) and engine_profile(plan.engine).is_torch


ADAPTER_ROWS = tuple(
    IdleOption(option=option, dest=dest, is_idle=_has_no_adapter, beside="without --adapter", missing="--adapter lora")
    for option, dest in (
        ("--lora-rank", "lora_rank"),
        ("--lora-dropout-fraction", "lora_dropout_fraction"),
        ("--lora-targets", "lora_targets"),
    )
)
RECIPE_ROWS = (
    *ADAPTER_ROWS,
    IdleOption(
        option="--recompute-layers",
        dest="recompute_layers",
        is_idle=_recomputes_nothing,
        beside="where nothing is recomputed",
        missing="--recompute full",
    ),
    IdleOption(
        option="--overlap-grad-reduce",
        dest="overlap_grad_reduce",
        is_idle=_always_overlaps,
        beside="on an engine whose data parallelism is torch's, which always reduces beside backward",
    ),
)
"""Of what a plan is made of, for every command that reads one."""


def _routes_nothing(_: argparse.Namespace, plan: Plan) -> bool:
    return not plan.model.is_moe


def _never_recomputes(arguments: argparse.Namespace, plan: Plan) -> bool:
    return not _recomputed(arguments, plan) & {"selective", "full"}


def _repeats_no_modules(arguments: argparse.Namespace, plan: Plan) -> bool:
    return "selective" not in _recomputed(arguments, plan)


def _recomputed(arguments: argparse.Namespace, plan: Plan) -> set[str]:
    """The kinds of recomputation of a plan that is asked about, or all that a search may try."""
    if "bound_recompute" in arguments:
        return set(arguments.bound_recompute or ("none", "selective", "full"))
    return {plan.recipe.recompute}


def _names_no_modules(_: argparse.Namespace, plan: Plan) -> bool:
    return plan.engine not in MODULE_ENGINES


def _has_no_attention(_: argparse.Namespace, plan: Plan) -> bool:
    return not any(isinstance(layer.mixer, AttentionSpec) for layer in plan.model.layers)


def _fills_the_sequence(arguments: argparse.Namespace, plan: Plan) -> bool:
    return bool(arguments.mean_document_len >= plan.recipe.seq_len)


def _computes_every_score(_: argparse.Namespace, plan: Plan) -> bool:
    return plan.recipe.attention == "eager"


def _of_modules(*, is_idle: IsIdle, beside: str, missing: str) -> IdleOption:
    return IdleOption(
        option="--recompute-modules", dest="recompute_modules", is_idle=is_idle, beside=beside, missing=missing
    )


def _of_documents(*, is_idle: IsIdle, beside: str, missing: str = "") -> IdleOption:
    return IdleOption(
        option="--mean-document-len", dest="mean_document_len", is_idle=is_idle, beside=beside, missing=missing
    )


ANSWER_ROWS = (
    IdleOption(
        option="--routing-imbalance-ratio",
        dest="routing_imbalance_ratio",
        is_idle=_routes_nothing,
        beside="in a model without routed experts",
    ),
    IdleOption(
        option="--recompute-layers",
        dest="recompute_layers",
        is_idle=_never_recomputes,
        beside="where nothing is recomputed",
        missing="--recompute full",
    ),
    _of_modules(
        is_idle=_names_no_modules,
        beside="on an engine that recomputes no modules by name",
        missing="--engine megatron",
    ),
    _of_modules(is_idle=_repeats_no_modules, beside="without selective recomputation", missing="--recompute selective"),
    _of_documents(is_idle=_has_no_attention, beside="in a model without attention to keep apart"),
    _of_documents(is_idle=_fills_the_sequence, beside="where documents of that length fill the sequence"),
    _of_documents(
        is_idle=_computes_every_score,
        beside="with eager attention, which computes every score of the packed sequence",
        missing="--attention flash",
    ),
)
"""Of ``plan`` and ``predict``, where the model, the engine or the bounds leave nothing for them."""

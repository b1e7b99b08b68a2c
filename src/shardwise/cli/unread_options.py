"""Options of the recipe that the model, the engine or the bounds leave nothing for: refused, not ignored."""

import argparse
from collections.abc import Callable
from dataclasses import dataclass

from shardwise.cli.command import UsageError
from shardwise.model import AttentionSpec
from shardwise.plan import Plan
from shardwise.rules.recompute_modules import MODULE_ENGINES

__all__ = ["require_effect"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Unread:
    """An option, when nothing reads it, and what to do instead."""

    dest: str
    is_unread: Callable[[argparse.Namespace, Plan], bool]
    because: str
    """Ends the sentence "--option changes nothing: "; the model's and the engine's names are filled in."""
    instead: str = ""
    """Something else to do than to leave the option out."""

    @property
    def option(self) -> str:
        """As the command line spells it."""
        return f"--{self.dest.replace('_', '-')}"


def require_effect(arguments: argparse.Namespace, plan: Plan) -> None:
    """Return when every option of the recipe that was given can change the answer.

    Raises:
        UsageError: one cannot.
    """
    given = vars(arguments)
    for row in ROWS:
        if given.get(row.dest) is not None and row.is_unread(arguments, plan):
            because = row.because.format(model=plan.model.name, engine=plan.engine, seq_len=plan.recipe.seq_len)
            leave_out = f"leave out {row.option}"
            raise UsageError(
                f"{row.option} changes nothing: {because}",
                code="cli-usage",
                fix=f"{row.instead}, or {leave_out}" if row.instead else leave_out,
            )


def _routes_nothing(_: argparse.Namespace, plan: Plan) -> bool:
    return not plan.model.is_moe


def _never_recomputes(arguments: argparse.Namespace, plan: Plan) -> bool:
    """In a plan that is asked about, or in all that a search may try."""
    return not _recomputed(arguments, plan) & {"selective", "full"}


def _recomputes_no_modules(arguments: argparse.Namespace, plan: Plan) -> bool:
    return "selective" not in _recomputed(arguments, plan)


def _names_no_modules(_: argparse.Namespace, plan: Plan) -> bool:
    return plan.engine not in MODULE_ENGINES


def _recomputed(arguments: argparse.Namespace, plan: Plan) -> set[str]:
    """What may be recomputed."""
    if "bound_recompute" in arguments:
        return set(arguments.bound_recompute or ("none", "selective", "full"))
    return {plan.recipe.recompute}


def _has_no_attention(_: argparse.Namespace, plan: Plan) -> bool:
    return not any(isinstance(layer.mixer, AttentionSpec) for layer in plan.model.layers)


def _fills_the_sequence(arguments: argparse.Namespace, plan: Plan) -> bool:
    return bool(arguments.mean_document_len >= plan.recipe.seq_len)


def _computes_every_score(_: argparse.Namespace, plan: Plan) -> bool:
    return plan.recipe.attention == "eager"


ROWS = (
    Unread(dest="routing_imbalance_ratio", is_unread=_routes_nothing, because="{model} has no routed experts"),
    Unread(
        dest="recompute_layers",
        is_unread=_never_recomputes,
        because="nothing is recomputed",
        instead="write --recompute full",
    ),
    Unread(
        dest="recompute_modules",
        is_unread=_names_no_modules,
        because="{engine} cannot recompute modules by name",
        instead="write --engine megatron",
    ),
    Unread(
        dest="recompute_modules",
        is_unread=_recomputes_no_modules,
        because="they say what selective recomputation repeats, which is not among what may be recomputed",
        instead="write --recompute selective",
    ),
    Unread(dest="mean_document_len", is_unread=_has_no_attention, because="{model} has no attention to keep apart"),
    Unread(
        dest="mean_document_len",
        is_unread=_fills_the_sequence,
        because="documents of that length fill sequences of {seq_len}",
        instead="write fewer tokens than --seq-len",
    ),
    Unread(
        dest="mean_document_len",
        is_unread=_computes_every_score,
        because="eager attention computes every score of the packed sequence and masks it afterwards",
        instead="write --attention flash",
    ),
)

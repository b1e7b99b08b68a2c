"""Options that nothing would read, because what they belong to is missing or replaced: refused instead of ignored."""

import argparse
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from shardwise.cli.command import UsageError
from shardwise.plan import Plan

__all__ = ["RECIPE_ROWS", "IdleOption", "IsIdle", "require_read"]

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
        beside="without --recompute",
        missing="--recompute full",
    ),
)
"""Of what a plan is made of, for every command that reads one."""

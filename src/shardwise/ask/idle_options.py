"""Options that nothing would read, because what they belong to is missing or replaced: refused instead of ignored."""

import argparse
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from shardwise.engines.table import engine_profile
from shardwise.errors import UsageError
from shardwise.fields import NULL, Field, Needs, field_named, plan_fields
from shardwise.model import AttentionSpec
from shardwise.plan import Plan
from shardwise.recipe import Recipe
from shardwise.rules.recompute_modules import MODULE_ENGINES
from shardwise.step.attention_kernel import writes_scores

__all__ = ["ANSWER_ROWS", "RECIPE_ROWS", "ROUTING_ROW", "IdleOption", "IsIdle", "require_read"]

IsIdle = Callable[[argparse.Namespace, Plan], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleOption:
    """An option, and when it does nothing."""

    option: str
    dest: str = ""
    """Where the parser keeps its value, if not under the name of the option."""
    default: object = None
    """The value that stands for an option that was not given."""
    is_idle: IsIdle
    beside: str
    """What it does nothing without, or beside, as the sentence ends: ``without --checkpoint-every``."""
    missing: str = ""
    """What to add; empty where only leaving it out helps."""

    def is_given(self, arguments: argparse.Namespace) -> bool:
        """Whether the command line has the option with a value; not every command has every one."""
        return vars(arguments).get(self.name, self.default) not in (self.default, NULL)

    @property
    def name(self) -> str:
        """The name under which the parser keeps its value."""
        return self.dest or self.option.removeprefix("--").replace("-", "_")


def require_read(
    rows: Iterable[IdleOption], arguments: argparse.Namespace, plan: Plan, *, is_python: bool = False
) -> None:
    """Return when every option of the rows that was given has something to act on.

    Raises:
        UsageError: one would be ignored; for a caller in Python it is spelled as a keyword.
    """
    spelled = _as_keywords if is_python else str
    for row in rows:
        if row.is_given(arguments) and row.is_idle(arguments, plan):
            fix = f"add {row.missing}, or leave out {row.option}" if row.missing else f"leave out {row.option}"
            raise UsageError(spelled(f"{row.option} does nothing {row.beside}"), code="cli-usage", fix=spelled(fix))


def _as_keywords(text: str) -> str:
    """Options as arguments of a function.

    >>> _as_keywords("add --recompute selective, or leave out --recompute-modules")
    "add recompute='selective', or leave out recompute_modules"
    """
    named = re.sub(r"--([a-z][a-z-]*)", lambda found: found[1].replace("-", "_"), text)
    return re.sub(r"add (\w+) (\w+)", r"add \1='\2'", named)


def _possible(arguments: argparse.Namespace, plan: Plan, name: str) -> set[object]:
    """The values of a field of the recipe: that of the plan, or all that a search may try."""
    bound = f"bound_{name}"
    if bound in arguments:
        return set(vars(arguments)[bound] or field_named(Recipe, name).choices)
    return {getattr(plan.recipe, name)}


def _without(field: Field, needs: Needs) -> IdleOption:
    """The row of a field that is read only beside another."""
    unset = field_named(Recipe, needs.name).default
    return IdleOption(
        option=field.option,
        is_idle=lambda arguments, plan: _possible(arguments, plan, needs.name) == {unset},
        beside=needs.words,
        missing=f"--{needs.name} {needs.value}",
    )


def _always_overlaps(arguments: argparse.Namespace, plan: Plan) -> bool:
    """Its opposite is refused by a rule, which says that there is no choice."""
    return bool(arguments.overlap_grad_reduce) and engine_profile(plan.engine).is_torch


RECIPE_ROWS = (
    *(_without(field, field.needs) for field in plan_fields(Recipe) if field.needs is not None),
    IdleOption(
        option="--overlap-grad-reduce",
        is_idle=_always_overlaps,
        beside="on an engine whose data parallelism is torch's, which always reduces beside backward",
    ),
)
"""Idle options among the parts of a plan, for every command that reads a plan."""


def _routes_nothing(_: argparse.Namespace, plan: Plan) -> bool:
    return not plan.model.is_moe


def _repeats_no_modules(arguments: argparse.Namespace, plan: Plan) -> bool:
    return "selective" not in _possible(arguments, plan, "recompute")


def _names_no_modules(_: argparse.Namespace, plan: Plan) -> bool:
    return plan.engine not in MODULE_ENGINES


def _has_no_attention(_: argparse.Namespace, plan: Plan) -> bool:
    return not any(isinstance(layer.mixer, AttentionSpec) for layer in plan.model.layers)


def _fills_the_sequence(arguments: argparse.Namespace, plan: Plan) -> bool:
    return bool(arguments.mean_document_len >= plan.recipe.seq_len)


def _computes_every_score(_: argparse.Namespace, plan: Plan) -> bool:
    return writes_scores(plan)


ROUTING_ROW = IdleOption(
    option="--routing-imbalance-ratio", is_idle=_routes_nothing, beside="in a model without routed experts"
)
ANSWER_ROWS = (
    ROUTING_ROW,
    IdleOption(
        option="--full",
        dest="is_full",
        default=False,
        is_idle=lambda arguments, _plan: not arguments.is_json,
        beside="without --json",
        missing="--json",
    ),
    IdleOption(
        option="--pick",
        is_idle=lambda arguments, _plan: arguments.out is None,
        beside="without --out",
        missing="--out plan.json",
    ),
    IdleOption(
        option="--pick",
        is_idle=lambda arguments, _plan: arguments.gpus is not None or arguments.gpu_types is not None,
        beside="beside several clusters, whose screen has no alternatives",
    ),
    IdleOption(
        option="--recompute-modules",
        is_idle=_names_no_modules,
        beside="on an engine that recomputes no modules by name",
        missing="--engine megatron",
    ),
    IdleOption(
        option="--recompute-modules",
        is_idle=_repeats_no_modules,
        beside="without selective recomputation",
        missing="--recompute selective",
    ),
    IdleOption(
        option="--mean-document-len",
        is_idle=_has_no_attention,
        beside="in a model without attention to keep apart",
    ),
    IdleOption(
        option="--mean-document-len",
        is_idle=_fills_the_sequence,
        beside="where documents of that length fill the sequence",
    ),
    IdleOption(
        option="--mean-document-len",
        is_idle=_computes_every_score,
        beside="with eager attention, which computes every score of the packed sequence",
        missing="--attention flash",
    ),
)
"""Options of ``plan`` and ``predict`` to which the model, the engine or the bounds leave nothing."""

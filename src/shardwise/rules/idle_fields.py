"""Warnings about fields that were set and change nothing, because another field switches them off."""

from collections.abc import Iterable

from shardwise.fields import Field, Needs, plan_fields
from shardwise.plan import Plan
from shardwise.recipe import NEEDS_ADAPTER, NEEDS_RECOMPUTE, Recipe
from shardwise.rules.refusal import Changes, change
from shardwise.rules.rule import Rule

UNSET = Recipe(seq_len=1)


def _idle_fields(recipe: Recipe, needs: Needs) -> tuple[Field, ...]:
    """The fields that were set and need what the recipe does not have."""
    if getattr(recipe, needs.name) != getattr(UNSET, needs.name):
        return ()
    fields = plan_fields(Recipe)
    return tuple(field for field in fields if field.needs == needs and getattr(recipe, field.name) != field.default)


def _idle_rule(name: str, needs: Needs, *, why: str, consequence: str = "") -> Rule:
    def message(plan: Plan) -> str:
        idle = _idle_fields(plan.recipe, needs)
        given = ", ".join(f"{field.name}={getattr(plan.recipe, field.name)}" for field in idle)
        return f"{given} changes nothing with {needs.name}={getattr(UNSET, needs.name)}{consequence}"

    def candidates(plan: Plan) -> Iterable[Changes]:
        yield ((needs.name, needs.value),)
        yield tuple((field.name, field.default) for field in _idle_fields(plan.recipe, needs))

    return Rule(
        name=name,
        severity="warning",
        why=why,
        source=f"definition of {needs.name}",
        breaks=lambda plan: bool(_idle_fields(plan.recipe, needs)),
        message=message,
        candidates=candidates,
    )


def _breaks_routing(plan: Plan) -> bool:
    return plan.recipe.routing_imbalance_ratio not in (None, 1) and not plan.model.is_moe


def _routing_message(plan: Plan) -> str:
    ratio = plan.recipe.routing_imbalance_ratio
    return f"routing_imbalance_ratio={ratio:g} is about routed experts, and {plan.model.name} has none"


RULES = (
    _idle_rule(
        "recipe-recompute-layers-idle",
        NEEDS_RECOMPUTE,
        why="How many layers are recomputed matters only when some are.",
    ),
    _idle_rule(
        "recipe-lora-idle",
        NEEDS_ADAPTER,
        why="Rank, targets and dropout describe an adapter, and without one every weight is trained.",
        consequence=": every weight is trained",
    ),
    Rule(
        name="recipe-routing-idle",
        severity="warning",
        why="How unevenly tokens are routed matters only where they are routed.",
        source="definition of routing_imbalance_ratio",
        breaks=_breaks_routing,
        message=_routing_message,
        candidates=(change(routing_imbalance_ratio=None),),
    ),
)

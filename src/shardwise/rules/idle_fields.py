"""Warnings about fields that were set and change nothing, because another field switches them off."""

from collections.abc import Iterable

from shardwise.plan import Plan
from shardwise.recipe import Recipe
from shardwise.rules.refusal import Changes
from shardwise.rules.rule import Rule

UNSET = Recipe(seq_len=1)
LORA_FIELDS = ("lora_rank", "lora_targets", "lora_dropout_fraction")


def _breaks_recompute_layers(plan: Plan) -> bool:
    return plan.recipe.recompute_layers is not None and plan.recipe.recompute == "none"


def _recompute_layers_message(plan: Plan) -> str:
    return f"recompute_layers={plan.recipe.recompute_layers} changes nothing with recompute=none"


def _recompute_layers_candidates(_plan: Plan) -> Iterable[Changes]:
    yield (("recompute", "full"),)
    yield (("recompute_layers", None),)


def _idle_lora_fields(plan: Plan) -> tuple[str, ...]:
    return tuple(name for name in LORA_FIELDS if getattr(plan.recipe, name) != getattr(UNSET, name))


def _breaks_lora(plan: Plan) -> bool:
    return plan.recipe.adapter == "none" and bool(_idle_lora_fields(plan))


def _lora_message(plan: Plan) -> str:
    given = ", ".join(f"{name}={getattr(plan.recipe, name)}" for name in _idle_lora_fields(plan))
    return f"{given} changes nothing with adapter=none: every weight is trained"


def _lora_candidates(plan: Plan) -> Iterable[Changes]:
    yield (("adapter", "lora"),)
    yield tuple((name, getattr(UNSET, name)) for name in _idle_lora_fields(plan))


def _breaks_routing(plan: Plan) -> bool:
    return plan.recipe.routing_imbalance_ratio != 1 and not plan.model.is_moe


def _routing_message(plan: Plan) -> str:
    ratio = plan.recipe.routing_imbalance_ratio
    return f"routing_imbalance_ratio={ratio:g} is about routed experts, and {plan.model.name} has none"


def _routing_candidates(_plan: Plan) -> Iterable[Changes]:
    yield (("routing_imbalance_ratio", 1.0),)


RULES = (
    Rule(
        name="recipe-recompute-layers-idle",
        severity="warning",
        why="How many layers are recomputed matters only when some are.",
        source="definition of recompute",
        breaks=_breaks_recompute_layers,
        message=_recompute_layers_message,
        candidates=_recompute_layers_candidates,
    ),
    Rule(
        name="recipe-lora-idle",
        severity="warning",
        why="Rank, targets and dropout describe an adapter, and without one every weight is trained.",
        source="definition of adapter",
        breaks=_breaks_lora,
        message=_lora_message,
        candidates=_lora_candidates,
    ),
    Rule(
        name="recipe-routing-idle",
        severity="warning",
        why="How unevenly tokens are routed matters only where they are routed.",
        source="definition of routing_imbalance_ratio",
        breaks=_breaks_routing,
        message=_routing_message,
        candidates=_routing_candidates,
    ),
)

"""Apply and describe changes to a plan, and complete a change with those that must go along with it."""

from dataclasses import fields, replace
from math import gcd
from typing import Literal

from shardwise.engines.table import ENGINES
from shardwise.fields import NULL
from shardwise.layout import Layout
from shardwise.plan import Plan
from shardwise.recipe import Recipe
from shardwise.rules.refusal import Changes, Value
from shardwise.schedules.table import DEFAULT_SCHEDULE, SCHEDULE_KINDS

LAYOUT_FIELDS = frozenset(field.name for field in fields(Layout))
RECIPE_FIELDS = frozenset(field.name for field in fields(Recipe))


def apply_changes(plan: Plan, changes: Changes) -> Plan:
    """The plan with ``changes`` made; fields are those of layout, recipe and ``engine``."""
    values = dict(changes)
    layout = {name: values.pop(name) for name in tuple(values) if name in LAYOUT_FIELDS}
    recipe = {name: values.pop(name) for name in tuple(values) if name in RECIPE_FIELDS}
    return replace(
        plan,
        layout=replace(plan.layout, **layout) if layout else plan.layout,  # type: ignore[arg-type]
        recipe=replace(plan.recipe, **recipe) if recipe else plan.recipe,  # type: ignore[arg-type]
        **values,  # type: ignore[arg-type]
    )


def current_value(plan: Plan, name: str) -> Value:
    """The plan's value of a layout, recipe or plan field."""
    record: Plan | Layout | Recipe = plan
    if name in LAYOUT_FIELDS:
        record = plan.layout
    elif name in RECIPE_FIELDS:
        record = plan.recipe
    value: Value = getattr(record, name)
    return value


def describe_changes(changes: Changes) -> str:
    """The changes as a sentence to type from.

    >>> describe_changes((("tp", 4), ("dp_shard", 16)))
    'set tp=4 and dp_shard=16'
    """
    if not changes:
        return "set engine=native and leave layout out, so that the plan is filled in"
    parts = [f"{name}={value_text(value)}" for name, value in changes]
    if len(parts) == 1:
        return f"set {parts[0]}"
    return f"set {', '.join(parts[:-1])} and {parts[-1]}"


def changes_text(changes: Changes) -> str:
    """The changes as they are typed, side by side.

    >>> changes_text((("optimizer", "adamw-8bit"), ("compile", True)))
    'optimizer=adamw-8bit compile=true'
    """
    return " ".join(f"{name}={value_text(value)}" for name, value in changes)


def value_text(value: Value) -> str:
    """A value as it is typed."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return f"[{','.join(map(str, value))}]"
    return NULL if value is None else str(value)


def complete(plan: Plan, changes: Changes) -> Changes:
    """``changes`` and whatever must follow from them: pipeline fields, world size, expert group, batch.

    A smaller ``tp`` frees ranks that become data-parallel, which makes the global batch a multiple of more sequences;
    a fix that leaves this to the reader is no fix. Only fields that would otherwise break a rule are touched.
    """
    for repair in (_repair_pipeline, _repair_world_size, _repair_experts, _repair_batch):
        changes = merge(changes, repair(apply_changes(plan, changes)))
    return changes


def merge(first: Changes, then: Changes) -> Changes:
    """The union of both lists of changes in order of first mention; the later value of a field wins."""
    return tuple({**dict(first), **dict(then)}.items())


def _repair_pipeline(plan: Plan) -> Changes:
    layout = plan.layout
    changes: dict[str, Value] = {}
    if layout.stage_layers is not None and (
        len(layout.stage_layers) != layout.pp or sum(layout.stage_layers) != plan.model.num_hidden_layers
    ):
        changes["stage_layers"] = None
    if layout.pp == 1 and layout.vpp > 1:
        changes["vpp"] = 1
    elif layout.pp > 1 and layout.vpp < SCHEDULE_KINDS[layout.schedule].least_chunks:
        changes["schedule"] = DEFAULT_SCHEDULE
    return tuple(changes.items())


def _repair_world_size(plan: Plan) -> Changes:
    layout, num_gpus = plan.layout, plan.cluster.num_gpus
    if layout.world_size == num_gpus:
        return ()
    axis = filling_axis(layout)
    others = layout.world_size // (layout.dp_replicate if axis == "dp_replicate" else layout.dp_shard)
    return ((axis, num_gpus // others),) if num_gpus % others == 0 else ()


def filling_axis(layout: Layout) -> Literal["dp_replicate", "dp_shard"]:
    """The axis that takes what is left of the world: the one that a plan file without degrees of its own fills."""
    return "dp_replicate" if layout.zero_stage == 0 and layout.dp_shard == 1 else "dp_shard"


def _repair_experts(plan: Plan) -> Changes:
    layout = plan.layout
    ranks = (
        layout.tp * layout.cp * layout.dp_shard * (layout.dp_replicate if ENGINES[plan.engine].lends_replicas else 1)
    )
    expert_tp = gcd(layout.expert_tp, ranks)
    ep = gcd(layout.ep, ranks // expert_tp)
    changes: list[tuple[str, Value]] = []
    if expert_tp != layout.expert_tp:
        changes.append(("expert_tp", expert_tp))
    if ep != layout.ep:
        changes.append(("ep", ep))
    return tuple(changes)


def _repair_batch(plan: Plan) -> Changes:
    """The nearest global batch that gives every rank whole micro-batches and the schedule enough of them."""
    wanted = plan.recipe.global_batch_size
    step = plan.recipe.micro_batch_size * plan.layout.data_parallel_size
    if wanted is None:
        return () if suits_schedule(plan, plan.layout.pp) else (("global_batch_size", 2 * plan.layout.pp * step),)
    if wanted % step == 0 and suits_schedule(plan, wanted // step):
        return ()
    nearest = max(1, round(wanted / step))
    if not suits_schedule(plan, nearest):
        rounds = plan.layout.pp * max(1, SCHEDULE_KINDS[plan.layout.schedule].least_microbatches_per_rank)
        nearest = max(1, round(nearest / rounds)) * rounds
    return (("global_batch_size", nearest * step),)


def suits_schedule(plan: Plan, num_microbatches: int) -> bool:
    """Whether every engine's version of the schedule can run this many micro-batches per step."""
    layout = plan.layout
    kind = SCHEDULE_KINDS[layout.schedule]
    if layout.pp == 1:
        return True
    if kind.runs_in_rounds:
        return num_microbatches % layout.pp == 0
    return (
        num_microbatches >= kind.least_microbatches_per_rank * layout.pp and num_microbatches % kind.model_copies == 0
    )

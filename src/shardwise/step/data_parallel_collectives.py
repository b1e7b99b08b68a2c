"""Collectives that keep data-parallel ranks equal: gathers of parameters, reductions of gradients.

What cannot be hidden is a record of its own with ``is_overlappable=False``: the first gather of a pass and the last
reduction of a step have no computation beside them.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil

from shardwise.step.collective_calls import Call, Group, Groups
from shardwise.step.held_weights import HeldWeights
from shardwise.step.inventory import Collective
from shardwise.step.stage_context import StageContext, Unit
from shardwise.step.step_operations import keeps_gathered
from shardwise.units import Bytes

MEGATRON_BUCKET_PARAMS = 40_000_000
MEGATRON_BUCKET_PARAMS_PER_RANK = 1_000_000
"""Megatron-LM ``core/distributed/distributed_data_parallel.py``: bucket size max(40M, 1M times the group)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The dense or the routed weights of one unit, which are divided over different groups."""

    name: str
    gathered_bytes: Bytes
    """Base and adapter as they are gathered."""
    trained: int
    """Elements whose gradients are reduced."""
    shards: Group


@dataclass(frozen=True, slots=True, kw_only=True)
class Gradients:
    """All gradients of a stage that are divided over one group."""

    name: str
    elements: int
    shards: Group


def data_parallel_collectives(context: StageContext) -> Iterator[Collective]:
    """Everything data parallelism communicates in one step of a stage."""
    layout, is_torch = context.plan.layout, _is_torch(context)
    if shards_unit_by_unit(context):
        yield from _fully_sharded(context)
    elif layout.zero_stage == 0 or layout.state_shard_size == 1:
        yield from _replicated(context)
    elif is_torch:
        yield from _torch_zero1(context)
    else:
        yield from _sharded_optimizer(context)


def shards_unit_by_unit(context: StageContext) -> bool:
    """Whether every block is gathered and reduced for itself, as FSDP and ZeRO-3 do, and not in buckets."""
    zero_stage = context.plan.layout.zero_stage
    return zero_stage == 3 or (zero_stage == 2 and _is_torch(context))


def _is_torch(context: StageContext) -> bool:
    return context.profile.sharding in ("fsdp2", "fsdp1")


def _parts(unit: Unit, context: StageContext) -> tuple[Part, ...]:
    """Dense and routed weights of a unit; one part when both are divided over equal groups."""
    groups = Groups(layout=context.plan.layout)
    base, adapter = unit.base, unit.adapter
    trained = adapter if context.has_adapter else base
    whole_bytes = context.gathered_bytes(unit)
    if not base.expert or groups.expert_shards.size == groups.shards.size:
        return (Part(name=unit.name, gathered_bytes=whole_bytes, trained=trained.full, shards=groups.shards),)
    expert_bytes = round(whole_bytes * base.expert / base.full)
    return (
        Part(
            name=unit.name,
            gathered_bytes=whole_bytes - expert_bytes,
            trained=trained.dense,
            shards=groups.shards,
        ),
        Part(
            name=f"{unit.name} experts",
            gathered_bytes=expert_bytes,
            trained=trained.expert,
            shards=groups.expert_shards,
        ),
    )


def _fully_sharded(context: StageContext) -> Iterator[Collective]:
    """FSDP and ZeRO-3: ``2 L + 1`` all-gathers and ``L + 1`` reduce-scatters per micro-batch of a whole model.

    Pipelines keep blocks gathered over the whole step and reduce once, at the last micro-batch (torchtitan
    ``distributed/fsdp.py``; torch ``pipelining/stage.py``).
    """
    rounds = 1 if context.plan.layout.pp > 1 else context.plan.num_microbatches
    root_first = sorted(_equal_units(context), key=lambda unit: unit.is_block)
    for position, unit in enumerate(root_first):
        for part in _parts(unit, context):
            for call in (*_gathers(part, unit, context), *_reductions(part, context)):
                is_edge = position == 0 and not (call.kind == "all_gather" and call.phase == "backward")
                if is_edge:
                    yield from call.hidden_but_one(units=unit.count, rounds=rounds)
                else:
                    yield from call.hidden(units=unit.count, rounds=rounds)


def _equal_units(context: StageContext) -> tuple[Unit, ...]:
    """Units with equal weights as one, as in models that alternate windows between equal blocks."""
    merged: dict[tuple[bool, HeldWeights, HeldWeights], Unit] = {}
    for unit in context.units:
        key = (unit.is_block, unit.base, unit.adapter)
        before = merged.get(key)
        merged[key] = replace(before, count=before.count + unit.count) if before else unit
    return tuple(merged.values())


def _gathers(part: Part, unit: Unit, context: StageContext) -> Iterator[Call]:
    payload = part.gathered_bytes
    name = f"all-gather {part.name}"
    yield Call(name=name, kind="all_gather", group=part.shards, num_bytes=payload, phase="forward")
    gathers_again = context.plan.layout.zero_stage == 3 and not keeps_gathered(context)
    if unit.is_block and gathers_again:
        yield Call(name=name, kind="all_gather", group=part.shards, num_bytes=payload, phase="backward")


def _reductions(part: Part, context: StageContext) -> Iterator[Call]:
    payload = part.trained * context.states.reduce_bytes
    yield Call(
        name=f"reduce-scatter {part.name}",
        kind="reduce_scatter",
        group=part.shards,
        num_bytes=payload,
        phase="backward",
    )
    yield Call(
        name=f"all-reduce {part.name} over replicas",
        kind="all_reduce",
        group=Groups(layout=context.plan.layout).replicas,
        num_bytes=ceil(payload / part.shards.size),
        phase="backward",
    )


def _all_gradients(context: StageContext) -> tuple[Gradients, ...]:
    """Gradients of the stage, dense and routed apart when their groups differ."""
    totals: dict[Group, int] = {}
    for unit in context.units:
        for part in _parts(unit, context):
            totals[part.shards] = totals.get(part.shards, 0) + part.trained * unit.count
    dense = Groups(layout=context.plan.layout).shards
    return tuple(
        Gradients(name="gradients" if shards == dense else "expert gradients", elements=elements, shards=shards)
        for shards, elements in totals.items()
        if elements
    )


def _replicated(context: StageContext) -> Iterator[Collective]:
    """DDP: bucketed all-reduces once per step, all but the last hidden under the last backward."""
    layout = context.plan.layout
    for gradients in _all_gradients(context):
        group = Group(
            axis="dp_replicate" if layout.dp_replicate > 1 else "dp_shard",
            size=gradients.shards.size * layout.dp_replicate,
            stride=gradients.shards.stride,
        )
        total = gradients.elements * context.states.reduce_bytes
        buckets = _num_buckets(context, group, total)
        call = Call(
            name=f"all-reduce {gradients.name}",
            kind="all_reduce",
            group=group,
            num_bytes=ceil(total / buckets),
            phase="backward",
        )
        if _hides(context, by_default=True):
            yield from call.hidden_but_one(units=buckets, rounds=1)
        else:
            yield from call.exposed(units=buckets, rounds=1)


def _hides(context: StageContext, *, by_default: bool) -> bool:
    """Whether buckets are communicated beside computation: as the recipe says, else as the engine does.

    Megatron makes one bucket of everything when it does not.
    """
    asked = context.plan.recipe.overlap_grad_reduce
    return by_default if asked is None else asked


def _sharded_optimizer(context: StageContext) -> Iterator[Collective]:
    """ZeRO-1 and 2 of Megatron and DeepSpeed: reduce-scatter gradients, all-gather updated weights.

    Megatron hides both (``--overlap-grad-reduce --overlap-param-gather``, set in its published runs). DeepSpeed hides
    neither below stage 3 (``overlap_comm`` is false by default, ``runtime/zero/config.py``), and stage 2 reduces every
    micro-batch (``runtime/zero/stage_1_and_2.py``).
    """
    hides = _hides(context, by_default=context.profile.sharding == "megatron")
    each_microbatch = context.profile.sharding == "deepspeed" and context.plan.layout.zero_stage == 2
    for gradients in _all_gradients(context):
        buckets = _num_buckets(context, gradients.shards, gradients.elements * context.states.reduce_bytes)
        for call in _optimizer_calls(context, gradients, buckets, hides=hides):
            repeats = each_microbatch and call.kind == "reduce_scatter"
            rounds = context.plan.num_microbatches if repeats else 1
            if hides:
                yield from call.hidden_but_one(units=buckets, rounds=rounds)
            else:
                yield from call.exposed(units=buckets, rounds=rounds)


def _optimizer_calls(context: StageContext, gradients: Gradients, buckets: int, *, hides: bool) -> Iterator[Call]:
    states, shards = context.states, gradients.shards
    reduced = gradients.elements * states.reduce_bytes
    yield Call(
        name=f"reduce-scatter {gradients.name}",
        kind="reduce_scatter",
        group=shards,
        num_bytes=ceil(reduced / buckets),
        phase="backward",
    )
    yield Call(
        name=f"all-reduce {gradients.name} over replicas",
        kind="all_reduce",
        group=Groups(layout=context.plan.layout).replicas,
        num_bytes=ceil(reduced / shards.size / buckets),
        phase="backward",
    )
    yield Call(
        name=f"all-gather weights after {gradients.name}",
        kind="all_gather",
        group=shards,
        num_bytes=ceil(gradients.elements * states.compute_bytes / buckets),
        phase="forward" if hides else "optimizer",
    )


def _torch_zero1(context: StageContext) -> Iterator[Collective]:
    """torch's ZeroRedundancyOptimizer: DDP's all-reduces, then every rank broadcasts the weights it updated."""
    yield from _replicated(context)
    for gradients in _all_gradients(context):
        ranks = gradients.shards.size
        call = Call(
            name=f"broadcast weights after {gradients.name}",
            kind="broadcast",
            group=gradients.shards,
            num_bytes=ceil(gradients.elements * context.states.weight_bytes / ranks),
            phase="optimizer",
        )
        yield from call.exposed(units=ranks, rounds=1)


def _num_buckets(context: StageContext, group: Group, total: Bytes) -> int:
    bucket_bytes = context.profile.bucket_bytes
    if context.profile.sharding == "megatron":
        if not _hides(context, by_default=True):
            return 1
        params = max(MEGATRON_BUCKET_PARAMS, MEGATRON_BUCKET_PARAMS_PER_RANK * group.size)
        bucket_bytes = params * context.states.reduce_bytes
    return max(1, ceil(total / bucket_bytes))

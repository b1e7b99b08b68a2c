"""Collectives that keep data-parallel ranks equal: gathers of parameters, reductions of gradients.

What cannot be hidden is a record of its own with ``is_overlappable=False``: the first gather of a pass and the last
reduction of a step have no computation beside them.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil

from shardwise.plan import Plan
from shardwise.step.collective_calls import Call, Group, Groups, as_issued
from shardwise.step.gradient_buckets import BucketedGradients, bucketed_gradients
from shardwise.step.held_weights import HeldWeights
from shardwise.step.inventory import Collective
from shardwise.step.native_engine import is_native_engine
from shardwise.step.own_collectives import own_collectives
from shardwise.step.reduction_policy import communicates_unit_by_unit, defers_reductions, is_torch, overlaps_reductions
from shardwise.step.stage_context import StageContext, Unit
from shardwise.step.step_operations import keeps_gathered
from shardwise.units import Bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The dense or the routed weights of one unit, which are divided over different groups."""

    name: str
    gathered_bytes: Bytes
    """Bytes of base and adapter as they are gathered."""
    trained: int
    """Elements whose gradients are reduced."""
    trained_shard: int
    """Elements of the worst rank's shard of them, rounded up as its weights are."""
    shards: Group


def data_parallel_collectives(context: StageContext) -> Iterator[Collective]:
    """What data parallelism communicates in one step of a stage."""
    return as_issued(_calls(context), context.plan)


def _calls(context: StageContext) -> Iterator[Collective]:
    layout = context.plan.layout
    if communicates_unit_by_unit(context.plan):
        yield from own_collectives(context) if is_native_engine(context.plan) else _fully_sharded(context)
    elif layout.zero_stage == 0 or layout.state_shard_size == 1:
        yield from _replicated(context)
    elif is_torch(context.plan):
        yield from _torch_zero1(context)
    else:
        yield from _sharded_optimizer(context)


def _parts(unit: Unit, context: StageContext) -> tuple[Part, ...]:
    """Dense and routed weights of a unit; one part when both are divided over equal groups."""
    groups = Groups(layout=context.plan.layout)
    base, adapter = unit.base, unit.adapter
    trained = adapter if context.has_adapter else base
    whole_bytes = context.gathered_bytes(unit)
    if not base.expert or groups.expert_shards.size == groups.shards.size:
        whole = Part(
            name=unit.name,
            gathered_bytes=whole_bytes,
            trained=trained.full,
            trained_shard=trained.shard,
            shards=groups.shards,
        )
        return (whole,)
    expert_bytes = round(whole_bytes * base.expert / base.full)
    return (
        Part(
            name=unit.name,
            gathered_bytes=whole_bytes - expert_bytes,
            trained=trained.dense,
            trained_shard=trained.dense_shard,
            shards=groups.shards,
        ),
        Part(
            name=f"{unit.name} experts",
            gathered_bytes=expert_bytes,
            trained=trained.expert,
            trained_shard=trained.expert_shard,
            shards=groups.expert_shards,
        ),
    )


def _fully_sharded(context: StageContext) -> Iterator[Collective]:
    """FSDP and ZeRO-3: ``2 L + 1`` all-gathers and ``L + 1`` reduce-scatters per micro-batch of a whole model.

    Pipelines keep blocks gathered over the whole step and reduce once, at the last micro-batch (torchtitan
    ``distributed/fsdp.py``; torch ``pipelining/stage.py``); so does accumulation that defers its reductions.
    """
    plan = context.plan
    rounds = 1 if plan.layout.pp > 1 else context.rounds
    reductions = 1 if defers_reductions(plan) else rounds
    root_first = sorted(_equal_units(context), key=lambda unit: unit.is_block)
    for position, unit in enumerate(root_first):
        for part in _parts(unit, context):
            for call in _gathers(part, unit, context):
                is_edge = position == 0 and call.phase == "forward"
                yield from (call.hidden_but_one if is_edge else call.hidden)(units=unit.count, rounds=rounds)
            for call in _reductions(part, context):
                if not overlaps_reductions(plan):
                    yield from call.exposed(units=unit.count, rounds=reductions)
                else:
                    issue = call.hidden_but_one if position == 0 else call.hidden
                    yield from issue(units=unit.count, rounds=reductions)


def _equal_units(context: StageContext) -> tuple[Unit, ...]:
    """The units of a stage, those with equal weights as one: some models alternate windows between equal blocks."""
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
        group = replace(part.shards, size=min(part.shards.size, context.plan.layout.reshard_size or part.shards.size))
        yield Call(name=name, kind="all_gather", group=group, num_bytes=payload, phase="backward")


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
        num_bytes=part.trained_shard * context.states.reduce_bytes,
        phase="backward",
    )


def _replicated(context: StageContext) -> Iterator[Collective]:
    """DDP: bucketed all-reduces, all but the last hidden under the last backward."""
    layout = context.plan.layout
    for gradients in bucketed_gradients(context):
        group = Group(
            axis="dp_replicate" if layout.dp_replicate > 1 else "dp_shard",
            size=gradients.shards.size // layout.model_copies * layout.dp_replicate,
            stride=gradients.shards.stride,
        )
        call = Call(name=f"all-reduce {gradients.name}", kind="all_reduce", group=group, num_bytes=0, phase="backward")
        both = replace(call, name=f"{call.name} of both copies", group=Groups(layout=layout).copies)
        for one in (both, call):
            yield from _bucketed(one, gradients, bytes_per_element=context.states.reduce_bytes, plan=context.plan)


def _bucketed(
    call: Call, gradients: BucketedGradients, *, bytes_per_element: float, plan: Plan
) -> Iterator[Collective]:
    """The call of every bucket; the last one, or the first gather of a step, has no computation beside it."""
    hides = overlaps_reductions(plan)
    rounds = 1 if defers_reductions(plan) or call.phase != "backward" else plan.num_microbatches
    *others, last = gradients.buckets
    for elements, count in Counter(bucket.elements for bucket in others).items():
        regular = replace(call, num_bytes=ceil(bytes_per_element * elements))
        yield from (regular.hidden if hides else regular.exposed)(units=count, rounds=rounds)
    edge = replace(call, num_bytes=ceil(bytes_per_element * last.elements))
    yield from edge.exposed(units=1, rounds=rounds)


def _sharded_optimizer(context: StageContext) -> Iterator[Collective]:
    """ZeRO-1 and 2 of Megatron and DeepSpeed: reduce-scatter gradients, all-gather updated weights.

    Megatron hides both (``--overlap-grad-reduce --overlap-param-gather``); DeepSpeed gathers after the update. Where
    two ranks of a pipeline hold a stage, each is left with half of its gradients, which data parallelism divides.
    """
    states, groups = context.states, Groups(layout=context.plan.layout)
    for gradients in bucketed_gradients(context):
        both = replace(gradients, name=f"{gradients.name} of both copies", shards=groups.copies)
        own = replace(gradients, shards=replace(gradients.shards, size=gradients.shards.size // groups.copies.size))
        reduce = Call(
            name=f"all-reduce {gradients.name} over replicas",
            kind="all_reduce",
            group=groups.replicas,
            num_bytes=0,
            phase="backward",
        )
        for one, share in ((both, 1.0), (own, 1 / groups.copies.size)):
            yield from _scattered_and_gathered(one, context, share=share)
        reduced = states.reduce_bytes / gradients.shards.size
        yield from _bucketed(reduce, gradients, bytes_per_element=reduced, plan=context.plan)


def _scattered_and_gathered(
    gradients: BucketedGradients, context: StageContext, *, share: float
) -> Iterator[Collective]:
    """Collectives of one share: gradients scattered over their ranks, and weights gathered from there."""
    plan, states = context.plan, context.states
    gathers_in_forward = context.profile.sharding == "megatron" and overlaps_reductions(plan)
    scatter = Call(
        name=f"reduce-scatter {gradients.name}",
        kind="reduce_scatter",
        group=gradients.shards,
        num_bytes=0,
        phase="backward",
    )
    gather = Call(
        name=f"all-gather weights after {gradients.name}",
        kind="all_gather",
        group=gradients.shards,
        num_bytes=0,
        phase="forward" if gathers_in_forward else "optimizer",
    )
    yield from _bucketed(scatter, gradients, bytes_per_element=share * states.reduce_bytes, plan=plan)
    if plan.recipe.broadcast_weights:
        owners = min(gradients.shards.size, num_matrices(context))
        num_bytes = ceil(share * states.compute_bytes * gradients.elements / owners)
        turn = replace(gather, name=f"broadcast weights after {gradients.name}", kind="broadcast", num_bytes=num_bytes)
        yield from turn.exposed(units=owners, rounds=1)
    elif gathers_in_forward:
        yield from _bucketed(gather, gradients, bytes_per_element=share * states.compute_bytes, plan=plan)
    else:
        num_buckets = len(gradients.buckets)
        num_bytes = ceil(share * states.compute_bytes * gradients.elements / num_buckets)
        yield from replace(gather, num_bytes=num_bytes).exposed(units=num_buckets, rounds=1)


def num_matrices(context: StageContext) -> int:
    """Tensors of a stage that are worth a rank of their own; more ranks than these update nothing.

    InternEvo gives every tensor whole to the rank with the fewest elements so far (``_partition_param_list``).
    """
    of_blocks = sum(count * sum(weight.is_matrix for weight in layer.weights) for layer, count in context.layer_runs)
    return max(1, of_blocks + context.stage.has_embedding + context.stage.has_head)


def _torch_zero1(context: StageContext) -> Iterator[Collective]:
    """torch's ZeroRedundancyOptimizer: DDP's all-reduces, then every rank broadcasts the weights it updated."""
    yield from _replicated(context)
    for gradients in bucketed_gradients(context):
        ranks = gradients.shards.size
        call = Call(
            name=f"broadcast weights after {gradients.name}",
            kind="broadcast",
            group=gradients.shards,
            num_bytes=ceil(gradients.elements * context.states.weight_bytes / ranks),
            phase="optimizer",
        )
        yield from call.exposed(units=ranks, rounds=1)

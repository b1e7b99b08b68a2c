"""Buffers of fully sharded data parallelism: gathered units and gradients on their way to a reduce-scatter."""

from collections.abc import Iterator, Sequence

from shardwise.columns import largest, least, negated, rounded
from shardwise.ledger import MemoryComponent
from shardwise.step.inventory import Tensor, present
from shardwise.step.reduction_policy import defers_reductions
from shardwise.step.stage_context import StageContext, Unit
from shardwise.step.timeline import RunMoments

DEEPSPEED_LIVE_ELEMENTS = 1_000_000_000
DEEPSPEED_PREFETCH_ELEMENTS = 50_000_000
"""DeepSpeed ``runtime/zero/config.py`` defaults: live parameters, prefetch bucket."""

FORWARD_COPIES = {"fsdp2": 3, "fsdp1": 2}
"""A unit in forward: its parameters and, under FSDP2, two flat all-gather outputs; FSDP1 gathers in place and
prefetches one unit."""


def tensor(name: str, component: MemoryComponent, num_bytes: float, first_use: int, last_use: int) -> Tensor:
    """A tensor of the inventory, its bytes rounded."""
    return Tensor(name=name, component=component, num_bytes=rounded(num_bytes), first_use=first_use, last_use=last_use)


def trainable_elements(context: StageContext, unit: Unit) -> int:
    """Elements of one unit that get a gradient on this rank."""
    return unit.adapter.full if context.has_adapter else unit.base.full


def fully_sharded_tensors(context: StageContext) -> Iterator[Tensor]:
    """Units gathered for computing and gradients waiting for their reduce-scatter.

    Inside a block's backward its parameters, the prefetched next unit and the previous block's reduce-scatter input
    are alive; just after it, its own whole gradients and reduce-scatter input. In a pipeline every stage keeps its
    blocks gathered and accumulates whole gradients in the reduce dtype until the last micro-batch.

    Source: torch 2.11 ``distributed/fsdp/_fully_shard/`` (``_fsdp_param_group.py``, ``_fsdp_collectives.py``) and
        ``distributed/pipelining/stage.py`` (``backward_maybe_with_nosync``); the order of the frees was read off
        allocation traces on an H100 (``benchmarks/results``).
    """
    timeline, reduce = context.timeline, context.states.reduce_bytes
    layout = context.plan.layout
    frees = layout.reshard_after_forward & (layout.pp == 1)
    blocks = [unit for unit in context.held_units if unit.is_block]
    total = sum(context.gathered_bytes(unit) * unit.count for unit in blocks) * negated(frees)
    yield tensor("gathered blocks", "gathered_parameters", total, timeline.forward, timeline.backward_end - 1)
    yield from present(frees, _gathered_in_forward(context, blocks))
    waits = defers_reductions(context.plan) & ((layout.pp > 1) | (context.plan.num_microbatches > 1))
    trained = sum(trainable_elements(context, unit) * unit.count for unit in context.held_units) * waits
    yield tensor("whole gradients", "gradients", reduce * trained, timeline.forward, timeline.backward_end)
    for unit in blocks:
        moments = timeline.runs[unit.run]
        yield from _gradients_on_their_way(context, unit, moments)
        yield from present(frees, _gathered_in_backward(context, unit, moments))
    if context.wraps_ends:
        yield from _end_units(context, frees=frees, waits=waits)
    else:
        yield from _root_unit(context)


def _gathered_in_forward(context: StageContext, blocks: Sequence[Unit]) -> Iterator[Tensor]:
    """Blocks that are freed after their forward, all but the last one. A pipeline frees none."""
    timeline, forward = context.timeline, context.timeline.forward
    one = largest(context.gathered_bytes(unit) for unit in blocks)
    copies = FORWARD_COPIES.get(context.profile.sharding, 2) + context.plan.layout.prefetch_units - 1
    yield tensor("gathered blocks (forward)", "gathered_parameters", copies * one, forward, forward)
    last = timeline.head_backward
    # Prefetched when the backward of what follows the blocks begins: of the loss, or of a unit that holds the head.
    first_use = last if context.wraps_ends else timeline.loss_forward
    yield tensor("gathered last block", "gathered_parameters", one, first_use, last)
    yield from _kept_for_backward(context)


def _kept_for_backward(context: StageContext) -> Iterator[Tensor]:
    """Blocks divided over a smaller group between forward and backward."""
    ranks = context.plan.layout.reshard_size
    if ranks is None:
        return
    total = sum(context.gathered_bytes(unit) * unit.count for unit in context.held_units if unit.is_block)
    first_use, last_use = context.timeline.forward, context.timeline.backward_end - 1
    yield tensor(f"blocks divided over {ranks}", "gathered_parameters", total / ranks, first_use, last_use)


def _gathered_in_backward(context: StageContext, unit: Unit, moments: RunMoments) -> Iterator[Tensor]:
    """A block's parameters while it goes backward, and the next one's flat gather until there is none."""
    gathered, ahead = context.gathered_bytes(unit), context.plan.layout.prefetch_units
    name = "gathered and prefetched block"
    if not moments.is_one_block:
        copies = 1 + least(ahead, unit.count - 1)
        yield tensor(name, "gathered_parameters", copies * gathered, moments.first_backward, moments.after_first)
    copies = 1 if unit.run == 0 else 1 + ahead
    yield tensor(name, "gathered_parameters", copies * gathered, moments.last_backward, moments.last_backward)


def _gradients_on_their_way(context: StageContext, unit: Unit, moments: RunMoments) -> Iterator[Tensor]:
    """The previous block's reduce-scatter input inside a block; its own gradients and input just after it."""
    states = context.states
    trained = trainable_elements(context, unit)
    name = "gradients being reduced"
    is_last_executed_first = unit.run == len(context.held_runs) - 1
    for moment in moments.inside:
        has_previous = not (is_last_executed_first and moment == moments.first_backward)
        waiting = states.reduce_bytes * trained if has_previous else 0
        yield tensor(name, "communication_buffers", waiting, moment, moment)
    for moment in moments.after:
        has_previous = not (is_last_executed_first and moment == moments.after_first)
        waiting = (states.compute_bytes + states.reduce_bytes * (1 + has_previous)) * trained
        yield tensor(name, "communication_buffers", waiting, moment, moment)


def _root_unit(context: StageContext) -> Iterator[Tensor]:
    """Embedding and head: gathered until the first block's backward, their gradients reduced when backward ends."""
    timeline, states = context.timeline, context.states
    end = timeline.backward_end
    for unit in context.held_units:
        if unit.is_block:
            continue
        elements, head = unit.base.full, context.head_elements
        gathered = states.compute_bytes * elements
        yield tensor("gathered embedding and head", "gathered_parameters", gathered, timeline.forward, end - 1)
        if not context.has_adapter:
            whole = states.compute_bytes * head
            yield tensor("head gradient", "communication_buffers", whole, timeline.head_backward, end - 1)
            waiting = states.compute_bytes * (elements - head) + states.reduce_bytes * elements
            yield tensor("embedding gradients being reduced", "communication_buffers", waiting, end, end)


def _end_units(context: StageContext, *, frees: bool, waits: bool) -> Iterator[Tensor]:
    """Token table and head as two units: each is gathered for itself, and its gradients are reduced as a block's are.

    The table is freed after its forward and gathered again for its backward. Head and final norm, the last to be
    gathered, stay until their backward, whose reduce-scatter input waits while the last block goes backward. In a
    pipeline both stay gathered, and their gradients are among the whole ones, which are freed as they are reduced.

    Args:
        context: the stage.
        frees: whether what was gathered is freed after forward.
        waits: whether whole gradients wait for the last micro-batch.

    Source: pytorch/torchtitan@b5bcd76 ``apply_fsdp``; torch 2.11 ``_fsdp_param_group.py`` (``post_backward``,
        ``_backward_prefetch``).
    """
    timeline, states = context.timeline, context.states
    end, reduces = timeline.backward_end, negated(waits)
    for unit in context.held_units:
        if unit.is_block:
            continue
        head = unit.base.full - context.embedding_elements if context.held.has_head else 0
        table = unit.base.full - head
        compute = states.compute_bytes
        gathered = compute * unit.base.full * negated(frees)
        yield tensor("gathered embedding and head", "gathered_parameters", gathered, timeline.forward, end - 1)
        gathered = compute * head * frees
        yield tensor("gathered head", "gathered_parameters", gathered, timeline.forward, timeline.head_backward)
        # The flat gather is let go when the root's forward ends (_fsdp_state.py, _post_forward).
        yield tensor("gathered head (forward)", "gathered_parameters", gathered, timeline.forward, timeline.forward)
        runs = timeline.runs  # none on a stage that holds nothing but the head or the embedding
        gathered = compute * table * frees
        around = (runs[0].last_backward, runs[0].after_last) if runs else (end, end)
        yield tensor("gathered embedding", "gathered_parameters", gathered, *around)
        if not context.has_adapter:
            at = timeline.head_backward
            yield tensor("head gradient", "communication_buffers", compute * head, at, at)
            waiting = states.reduce_bytes * head * reduces
            name = "head gradients being reduced"
            around = (runs[-1].first_backward, runs[-1].after_first) if runs else (end, end)
            yield tensor(name, "communication_buffers", waiting, *around)
            waiting = (compute * reduces + states.reduce_bytes) * table
            yield tensor("embedding gradients being reduced", "communication_buffers", waiting, end, end)


def zero_3_tensors(context: StageContext) -> Iterator[Tensor]:
    """DeepSpeed ZeRO-3: up to a fixed number of gathered elements stay alive, and flat buckets for gradients.

    Source: DeepSpeed ``runtime/zero/config.py`` and ``partitioned_param_coordinator.py``.
    """
    timeline, states = context.timeline, context.states
    whole = sum(unit.base.full * unit.count for unit in context.held_units)
    trained = sum(trainable_elements(context, unit) * unit.count for unit in context.held_units)
    live = least(whole, DEEPSPEED_LIVE_ELEMENTS + DEEPSPEED_PREFETCH_ELEMENTS) * states.compute_bytes
    buckets = 2 * least(context.profile.bucket.num_elements, trained) * states.reduce_bytes
    end = timeline.backward_end
    yield from _kept_for_backward(context)
    yield tensor("gathered live parameters", "gathered_parameters", live, timeline.forward, end)
    yield tensor("reduce buckets", "communication_buffers", buckets, timeline.loss_backward, end)

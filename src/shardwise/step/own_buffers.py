"""What FSDP2 gathers and reduces for our own trainer, unit by unit: the head, each block, the token table, the rest.

A gathered unit is a copy of its parameters; while it is gathered a flat output stands beside it. A unit's gradients are
reduced from a flat input, which stays until the next unit's reduction. The order of a backward pass is head, blocks
from the last to the first, token table, and the rest of the model.

Source: torch ``distributed/fsdp/_fully_shard`` (``_fsdp_param_group.py``, ``_fsdp_collectives.py``), traced.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from shardwise.ledger import MemoryComponent
from shardwise.step.gradient_births import gradient_births
from shardwise.step.inventory import Tensor
from shardwise.step.own_runtime import (
    frees_after_forward,
    gathers_every_micro_batch,
    is_replicated,
    reduces_every_micro_batch,
)
from shardwise.step.stage_context import StageContext, Unit
from shardwise.units import Bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """Elements outside the blocks, by the unit they are gathered in."""

    embedding: int
    head: int
    rest: int
    """The final norm, and a tied table."""


def own_tables(context: StageContext) -> Tables:
    """The tables of a stage; a tied one belongs to the rest of the model, and one that ranks divide to nothing."""
    whole = sum(unit.base.full for unit in context.held_units if not unit.is_block)
    is_tied = context.plan.model.tie_word_embeddings and context.stage.has_embedding
    head = 0 if is_tied else context.head_elements
    embedding = 0 if is_tied else context.embedding_elements
    rest = whole - head - embedding
    if context.vocabulary_ranks > 1:
        return Tables(embedding=0, head=0, rest=rest)
    return Tables(embedding=embedding, head=head, rest=rest)


def own_buffers(context: StageContext) -> Iterator[Tensor]:
    """Gathered parameters, and gradients on their way to the ranks that keep them."""
    tables = own_tables(context)
    if frees_after_forward(context.plan.layout):
        yield from _freed(context, tables)
    else:
        yield from _kept(context, tables)
    if _waits(context):
        yield from _whole_gradients(context)
    yield from _reductions(context, tables)


def accumulates_whole(context: StageContext) -> bool:
    """Whether whole gradients are added up over micro-batches before they are reduced."""
    return _waits(context)


def _waits(context: StageContext) -> bool:
    return context.plan.num_microbatches > 1 and not reduces_every_micro_batch(context.plan.layout)


def _tensor(name: str, component: MemoryComponent, num_bytes: float, born: int, dies: int) -> Tensor:
    return Tensor(name=name, component=component, num_bytes=round(num_bytes), born=born, dies=dies)


def _blocks(context: StageContext) -> list[Unit]:
    return [unit for unit in context.held_units if unit.is_block]


def _kept(context: StageContext, tables: Tables) -> Iterator[Tensor]:
    """All stay gathered through forward and go one by one in the last backward, a pipeline's together at its end.

    The flat outputs of the first pass count only where later ones hold no more.
    """
    timeline, compute = context.timeline, context.states.compute_bytes
    blocks = _blocks(context)
    name = "whole parameters"
    end = timeline.backward_end
    is_pipeline = context.plan.layout.pp > 1
    for unit in blocks:
        moments, one = timeline.runs[unit.run], context.gathered_bytes(unit)
        dies = (end, end, end) if is_pipeline else (moments.first_backward, moments.after_first, moments.last_backward)
        for count, last in zip((min(1, unit.count - 1), max(0, unit.count - 2), 1), dies, strict=True):
            yield _tensor(name, "gathered_parameters", count * one, timeline.forward, last)
    tables_bytes = compute * (tables.embedding + tables.rest)
    yield _tensor(name, "gathered_parameters", tables_bytes, timeline.forward, end)
    head_dies = end if is_pipeline else timeline.head_backward
    yield _tensor(name, "gathered_parameters", compute * tables.head, timeline.loss_forward, head_dies)
    is_one_pass = context.plan.num_microbatches == 1 or gathers_every_micro_batch(context.plan.layout)
    if is_replicated(context.plan.layout) or not is_one_pass:
        yield _tensor(name, "gathered_parameters", 0, timeline.forward, timeline.forward)
        return
    largest = max((context.gathered_bytes(unit) for unit in blocks), default=0)
    flat = "flat gather"
    yield _tensor(flat, "gathered_parameters", largest, timeline.forward, timeline.forward)
    if tables.head:
        head = compute * tables.head
        yield _tensor(flat, "gathered_parameters", head, timeline.loss_forward, timeline.loss_forward)


def _freed(context: StageContext, tables: Tables) -> Iterator[Tensor]:
    """Blocks and the token table go after forward; the last block, the head and the rest stay."""
    timeline, compute, layout = context.timeline, context.states.compute_bytes, context.plan.layout
    blocks, ahead = _blocks(context), context.plan.layout.prefetch_units
    component: MemoryComponent = "gathered_parameters"
    end = timeline.backward_end
    yield _tensor("rest of the model", component, compute * tables.rest, timeline.forward, end)
    largest = max((context.gathered_bytes(unit) for unit in blocks), default=0)
    last = context.gathered_bytes(blocks[-1]) if blocks else 0
    copies = 1 + ahead
    yield _tensor("gathered blocks (forward)", component, copies * largest, timeline.forward, timeline.forward)
    if timeline.loss_forward > timeline.forward:
        head = compute * tables.head
        yield _tensor("gathered last block", component, last, timeline.loss_forward, timeline.head_backward)
        yield _tensor("gathered head", component, head, timeline.loss_forward, timeline.head_backward)
        flat = 0 if context.vocabulary_ranks > 1 else head or last
        yield _tensor("flat gather", component, flat, timeline.loss_forward, timeline.loss_forward)
    if layout.reshard_size:
        total = sum(context.gathered_bytes(unit) * unit.count for unit in blocks) - largest
        total += compute * tables.embedding
        kept = f"units divided over {layout.reshard_size}"
        yield _tensor(kept, component, total / layout.reshard_size, timeline.forward, end - 1)
    for unit in blocks:
        yield from _in_backward(context, unit, tables)


def _in_backward(context: StageContext, unit: Unit, tables: Tables) -> Iterator[Tensor]:
    """A block while it goes backward, and what is gathered ahead of it: blocks, or in the first one the token table."""
    gathered, moments = context.gathered_bytes(unit), context.timeline.runs[unit.run]
    ahead = context.plan.layout.prefetch_units
    name: str = "gathered and prefetched block"
    if unit.count > 1:
        copies = 1 + min(ahead, unit.count - 1)
        yield _tensor(name, "gathered_parameters", copies * gathered, moments.first_backward, moments.after_first)
    table = context.states.compute_bytes * tables.embedding if unit.run == 0 else ahead * gathered
    if unit.run == 0 and unit.count > 1:
        table = max(table, _second(context, unit))
    yield _tensor(name, "gathered_parameters", gathered + table, moments.last_backward, moments.last_backward)


def _second(context: StageContext, unit: Unit) -> Bytes:
    """What the second block holds more than the first in its backward, apart from the table: it still gathers ahead.

    Its own inputs are there, and the gradients of one block less; where that is more, it is counted with the first.
    """
    ahead = min(context.plan.layout.prefetch_units, unit.count - 1) * context.gathered_bytes(unit)
    is_born_late = context.plan.num_microbatches == 1
    made = context.states.gradient_bytes * context.trained(unit).shard if is_born_late else 0
    is_recomputed = context.held_runs[unit.run].num_recomputed == unit.count
    kept = context.kept_bytes(unit.run) if is_recomputed else 0
    return ahead - made + kept


def _whole_gradients(context: StageContext) -> Iterator[Tensor]:
    """Added up in what they are reduced in, from the first micro-batch's backward to the last.

    Backward makes them on the stream it computes on, a reduction makes its result on its own.
    """
    timeline, reduce = context.timeline, context.states.reduce_bytes
    whole = {unit.name: reduce * context.trained(unit).full * unit.count for unit in context.held_units}
    parts: list[tuple[Bytes, int]] = [(sum(whole.values()), timeline.forward)]
    if context.forwards_come_first:
        parts = [part for unit in context.held_units for part in gradient_births(context, unit, whole[unit.name])]
        made = 0 if context.has_adapter else context.states.compute_bytes * context.embedding_elements
        end = timeline.first_backward_end
        yield _tensor("gradient of the token table", "gradients", made, end, end)
    for num_bytes, born in parts:
        yield Tensor(
            name="whole gradients",
            component="gradients",
            num_bytes=num_bytes,
            born=born,
            dies=timeline.backward_end,
            pool="whole gradients",
        )


def _reductions(context: StageContext, tables: Tables) -> Iterator[Tensor]:
    """The input of the unit before inside each unit's backward, and both with the unit's own gradients after it.

    What is exchanged is sent as it was made; what arrives stands beside it in place of the unit's gradients.
    """
    timeline, compute = context.timeline, context.states.compute_bytes
    reduce = compute if context.exchanges_gradients else context.states.reduce_bytes
    name = "gradients being reduced"
    component: MemoryComponent = "communication_buffers"
    waits = _waits(context)
    blocks = _blocks(context)
    if context.has_adapter:
        tables = Tables(embedding=0, head=0, rest=0)  # frozen
    if tables.head and not waits:
        at_once = 2 * compute if context.exchanges_gradients else reduce
        yield _tensor(name, component, at_once * tables.head, timeline.head_backward, timeline.head_backward)
    before = tables.head
    for unit in reversed(blocks):
        moments = timeline.runs[unit.run]
        trained = context.trained(unit)
        own = trained.full
        for inside in moments.inside:
            made = compute * (trained.expert or trained.largest_matrix)
            yield _tensor("weight gradients", "temporaries", made, inside, inside)
        for inside, after in zip(moments.inside, moments.after, strict=False):
            is_first = inside == moments.first_backward
            # The second block meets the first one's input: where that is larger, it is counted with the first.
            previous = max(before, own if unit.count > 1 else 0) if is_first else own
            yield _tensor(name, component, 0 if waits else reduce * previous, inside, inside)
            reduced = compute * own if waits else (compute + reduce) * own + reduce * previous
            yield _tensor(name, component, reduced, after, after)
        before = own
    last = tables.embedding + tables.rest
    end = timeline.backward_end
    if context.plan.num_microbatches > 1 and not waits:
        # The input of a micro-batch's last reduction goes when the next one's first is made.
        yield _tensor(name, component, reduce * last, timeline.forward, timeline.loss_backward)
    if context.exchanges_gradients:
        before = max(before, last)
    reduced = compute * last if waits else (compute + reduce) * last + reduce * before
    yield _tensor(name, component, reduced, end, end)

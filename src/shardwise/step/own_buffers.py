"""FSDP2's buffers in our own trainer, unit by unit: the head, each block, the token table, the rest.

A gathered unit is a copy of its parameters; while it is gathered a flat output stands beside it. A unit's gradients are
reduced from a flat input, which stays until the next unit's reduction. The order of a backward pass is head, blocks
from the last to the first, token table, and the rest of the model.

Source: torch ``distributed/fsdp/_fully_shard`` (``_fsdp_param_group.py``, ``_fsdp_collectives.py``), traced.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from shardwise.columns import either, largest, least, most, negated, rounded, settled
from shardwise.ledger import MemoryComponent
from shardwise.step.gradient_first_uses import gradient_first_uses
from shardwise.step.inventory import Tensor, present
from shardwise.step.native_engine import (
    frees_after_forward,
    gathers_every_micro_batch,
    is_alone,
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
    """Elements of the final norm, and of a tied table."""


def own_tables(context: StageContext) -> Tables:
    """The tables of a stage; a tied one belongs to the rest of the model, and one that ranks divide to nothing."""
    whole = sum(unit.base.full for unit in context.held_units if not unit.is_block)
    is_tied = context.plan.model.tie_word_embeddings and context.held.has_embedding
    head = 0 if is_tied else context.head_elements
    embedding = 0 if is_tied else context.embedding_elements
    is_gathered = context.vocabulary_ranks == 1
    return Tables(embedding=embedding * is_gathered, head=head * is_gathered, rest=whole - head - embedding)


def own_buffers(context: StageContext) -> Iterator[Tensor]:
    """Gathered parameters, and gradients on their way to the ranks that keep them."""
    tables = own_tables(context)
    frees = frees_after_forward(layout=context.plan.layout, recipe=context.plan.recipe)
    yield from present(frees, _freed(context, tables))
    yield from present(negated(frees), _kept(context, tables))
    yield from present(accumulates_whole(context), _whole_gradients(context))
    yield from _reductions(context, tables)


def accumulates_whole(context: StageContext) -> bool:
    """Whether our trainer adds whole gradients up over micro-batches before units reduce them."""
    plan = context.plan
    if not context.is_native_engine:
        return False
    waits = (plan.num_microbatches > 1) & negated(reduces_every_micro_batch(plan.layout))
    return settled(context.gathers_parameters & waits)


def _tensor(name: str, component: MemoryComponent, num_bytes: float, first_use: int, last_use: int) -> Tensor:
    return Tensor(name=name, component=component, num_bytes=rounded(num_bytes), first_use=first_use, last_use=last_use)


def _blocks(context: StageContext) -> list[Unit]:
    return [unit for unit in context.held_units if unit.is_block]


def _kept(context: StageContext, tables: Tables) -> Iterator[Tensor]:
    """Units that stay gathered through forward and go one by one in the last backward, a pipeline's together at its
    end.

    The flat outputs of the first pass count only where later ones hold no more.
    """
    timeline, compute = context.timeline, context.states.compute_bytes
    blocks = _blocks(context)
    name = "whole parameters"
    end, head = timeline.backward_end, compute * tables.head
    is_pipeline = context.plan.layout.pp > 1
    for unit in blocks:
        moments, one = timeline.runs[unit.run], context.gathered_bytes(unit)
        last_use = (moments.first_backward, moments.after_first, moments.last_backward)
        for count, last in zip((least(1, unit.count - 1), most(0, unit.count - 2), 1), last_use, strict=True):
            for some, until in ((negated(is_pipeline), last), (is_pipeline, end)):
                yield _tensor(name, "gathered_parameters", count * one * some, timeline.forward, until)
    tables_bytes = compute * (tables.embedding + tables.rest)
    # A unit is freed before its gradients are reduced.
    for some, head_until, until in ((negated(is_pipeline), timeline.head_backward, end - 1), (is_pipeline, end, end)):
        yield _tensor(name, "gathered_parameters", head * some, timeline.loss_forward, head_until)
        yield _tensor(name, "gathered_parameters", tables_bytes * some, timeline.forward, until)
    is_one_pass = (context.plan.num_microbatches == 1) | gathers_every_micro_batch(
        layout=context.plan.layout, recipe=context.plan.recipe
    )
    has_flat = is_one_pass & negated(is_replicated(context.plan.layout))
    largest_unit = largest(context.gathered_bytes(unit) for unit in blocks)
    flat = "flat gather"
    yield _tensor(flat, "gathered_parameters", largest_unit * has_flat, timeline.forward, timeline.forward)
    yield _tensor(flat, "gathered_parameters", head * has_flat, timeline.loss_forward, timeline.loss_forward)


def _freed(context: StageContext, tables: Tables) -> Iterator[Tensor]:
    """Units where blocks and the token table are freed after forward; the last block, the head and the rest stay.

    Pipelines free nothing, so the stage has the head.
    """
    timeline, compute, layout = context.timeline, context.states.compute_bytes, context.plan.layout
    blocks, ahead = _blocks(context), _prefetched(context)
    component: MemoryComponent = "gathered_parameters"
    end = timeline.backward_end
    yield _tensor("rest of the model", component, compute * tables.rest, timeline.forward, end)
    largest_unit = largest(context.gathered_bytes(unit) for unit in blocks)
    last = context.gathered_bytes(blocks[-1]) if blocks else 0
    copies = 1 + ahead
    yield _tensor("gathered blocks (forward)", component, copies * largest_unit, timeline.forward, timeline.forward)
    head = compute * tables.head
    yield _tensor("gathered last block", component, last, timeline.loss_forward, timeline.head_backward)
    yield _tensor("gathered head", component, head, timeline.loss_forward, timeline.head_backward)
    flat = either(head > 0, head, last) * (context.vocabulary_ranks == 1)
    flat = flat * negated(is_replicated(layout))
    yield _tensor("flat gather", component, flat, timeline.loss_forward, timeline.loss_forward)
    if layout.reshard_size:
        total = sum(context.gathered_bytes(unit) * unit.count for unit in blocks) - largest_unit
        total = total + compute * tables.embedding
        kept = f"units divided over {layout.reshard_size}"
        yield _tensor(kept, component, total / layout.reshard_size, timeline.forward, end - 1)
    for unit in blocks:
        yield from _in_backward(context, unit, tables)


def _prefetched(context: StageContext) -> int:
    """Units that are gathered ahead; one rank that has them all copies each when it is needed."""
    return context.plan.layout.prefetch_units * negated(is_replicated(context.plan.layout))


def _in_backward(context: StageContext, unit: Unit, tables: Tables) -> Iterator[Tensor]:
    """A block while it goes backward, and what is gathered ahead of it: blocks, or in the first one the token table."""
    gathered, moments = context.gathered_bytes(unit), context.timeline.runs[unit.run]
    ahead = _prefetched(context)
    name: str = "gathered and prefetched block"
    if not moments.is_one_block:
        copies = 1 + least(ahead, unit.count - 1)
        yield _tensor(name, "gathered_parameters", copies * gathered, moments.first_backward, moments.after_first)
    table = context.states.compute_bytes * tables.embedding if unit.run == 0 else ahead * gathered
    if unit.run == 0 and not moments.is_one_block:
        table = most(table, _second(context, unit))
    yield _tensor(name, "gathered_parameters", gathered + table, moments.last_backward, moments.last_backward)


def _second(context: StageContext, unit: Unit) -> Bytes:
    """Bytes that the second block's backward holds beyond the first's, without the table: it still gathers ahead.

    Its own inputs are alive, too, but the gradients of one block less; where those are more, they count with the first.
    """
    ahead = least(_prefetched(context), unit.count - 1) * context.gathered_bytes(unit)
    comes_late = context.plan.num_microbatches == 1
    made = context.states.gradient_bytes * context.trained(unit).shard * comes_late
    is_recomputed = context.held_runs[unit.run].num_recomputed == unit.count
    return ahead - made + context.kept_bytes(unit.run) * is_recomputed


def _whole_gradients(context: StageContext) -> Iterator[Tensor]:
    """Whole gradients in the dtype they are reduced in, from the first micro-batch's backward to the last.

    Backward makes them on the stream it computes on, a reduction makes its result on its own.
    """
    timeline, reduce = context.timeline, context.states.reduce_bytes
    whole = {unit.name: reduce * context.trained(unit).full * unit.count for unit in context.held_units}
    parts: list[tuple[Bytes, int]] = [(sum(whole.values()), timeline.forward)]
    if context.held.forwards_come_first:
        parts = [part for unit in context.held_units for part in gradient_first_uses(context, unit, whole[unit.name])]
        made = 0 if context.has_adapter else context.states.compute_bytes * context.embedding_elements
        end = timeline.first_backward_end
        yield _tensor("gradient of the token table", "gradients", made, end, end)
    for num_bytes, first_use in parts:
        yield Tensor(
            name="whole gradients",
            component="gradients",
            num_bytes=num_bytes,
            first_use=first_use,
            last_use=timeline.backward_end,
            pool="whole gradients",
        )


def _reductions(context: StageContext, tables: Tables) -> Iterator[Tensor]:
    """Buffers of reductions: inside each unit's backward that of the unit before, after it that of the unit as well.

    What is exchanged is sent as it was made; what arrives stands beside it in place of the unit's gradients. One rank
    alone keeps the buffer that it would send from.
    """
    timeline, compute = context.timeline, context.states.compute_bytes
    reduce = either(context.exchanges_gradients, compute, context.states.reduce_bytes)
    reduce = either(is_alone(context.plan.layout), 0, reduce)
    name = "gradients being reduced"
    component: MemoryComponent = "communication_buffers"
    waits, exchanges = accumulates_whole(context), context.exchanges_gradients
    blocks = _blocks(context)
    if context.has_adapter:
        tables = Tables(embedding=0, head=0, rest=0)  # frozen
    at_once = either(exchanges, 2 * compute, reduce) * negated(waits)
    yield _tensor(name, component, at_once * tables.head, timeline.head_backward, timeline.head_backward)
    before = tables.head
    for unit in reversed(blocks):
        moments = timeline.runs[unit.run]
        trained = context.trained(unit)
        own = trained.full
        for inside in moments.inside:
            made = compute * either(trained.expert > 0, trained.expert, trained.largest_matrix)
            yield _tensor("weight gradients", "temporaries", made, inside, inside)
        for inside, after in zip(moments.inside, moments.after, strict=False):
            is_first = inside == moments.first_backward
            # The second block meets the first one's input: where that is larger, it is counted with the first.
            previous = (before if moments.is_one_block else most(before, own)) if is_first else own
            yield _tensor(name, component, reduce * previous * negated(waits), inside, inside)
            reduced = compute * own + reduce * (own + previous) * negated(waits)
            yield _tensor(name, component, reduced, after, after)
        before = own
    last = tables.embedding + tables.rest
    end = timeline.backward_end
    # The input of a micro-batch's last reduction goes when the next one's first is made.
    is_left = (context.plan.num_microbatches > 1) & negated(waits)
    yield _tensor(name, component, reduce * last * is_left, timeline.forward, timeline.loss_backward)
    before = either(exchanges, most(before, last), before)
    reduced = compute * last + reduce * (last + before) * negated(waits)
    yield _tensor(name, component, reduced, end, end)

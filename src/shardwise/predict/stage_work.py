"""The computation of one stage for one micro-batch, block by block and chunk by chunk."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from shardwise.model import LayerSpec
from shardwise.predict.compute import PhaseTimes
from shardwise.predict.passes import PassCall
from shardwise.predict.stage_passes import BlockWork, StageWork, TimedCall
from shardwise.simulate.pipeline_times import ChunkTimes
from shardwise.step.inventory import OperationPhase
from shardwise.step.operation_context import OperationContext, operation_context
from shardwise.step.operations import BlockBook, GroupPart, OperationGroup
from shardwise.step.stage_context import StageContext
from shardwise.units import Seconds

NO_TIME = PhaseTimes()


@dataclass(frozen=True, kw_only=True)
class WorkBook:
    """The operations of a stage in groups, with the time of one execution of each."""

    groups: tuple[OperationGroup, ...]
    times: tuple[PhaseTimes, ...]
    blocks: BlockBook

    @property
    def total(self) -> PhaseTimes:
        """The whole step."""
        total = NO_TIME
        for group, times in zip(self.groups, self.times, strict=True):
            total = total.plus(times, times=group.count)
        return total

    def of_part(self, part: GroupPart) -> PhaseTimes:
        """One execution of the embedding, the head or the copies."""
        found = [times for group, times in zip(self.groups, self.times, strict=True) if group.part == part]
        return found[0] if found else NO_TIME

    def of_layer(self, layer: LayerSpec, operation: OperationContext) -> tuple[PhaseTimes, PhaseTimes]:
        """One block for one micro-batch: without recomputation, and what is run again where it is recomputed."""
        once = self.blocks.forward_and_backward(layer, operation)
        again = self.blocks.recomputed(layer, operation)
        times = {id(group.operations): time for group, time in zip(self.groups, self.times, strict=True)}
        return times[id(once)], times.get(id(again), NO_TIME)


def stage_work(context: StageContext, book: WorkBook, calls: Iterable[TimedCall]) -> StageWork:
    """One micro-batch of a stage for the event engine.

    Copies around the blocks and the collectives inside them are divided evenly among all blocks; where only some blocks
    are recomputed, every block gets its share.
    """
    operation = operation_context(context)
    copies = book.of_part("sharding copies")
    embedding, head = book.of_part("embedding"), book.of_part("head")
    num_blocks = max(1, context.stage.num_layers)
    blocks = []
    for number, (layer, count) in enumerate(context.layer_runs):
        once, again = book.of_layer(layer, operation)
        recomputed = context.recomputed_layers(count) / count
        blocks.append(
            BlockWork(
                name=f"blocks[{number}]",
                count=count,
                forward_s=once.forward_s + copies.forward_s / num_blocks,
                backward_s=once.backward_s + copies.backward_s / num_blocks,
                recompute_s=recomputed * again.recompute_s,
            )
        )
    waits = [timed for timed in calls if _is_waited_for(timed)]
    return StageWork(
        blocks=tuple(blocks),
        embedding_forward_s=embedding.forward_s,
        embedding_backward_s=embedding.backward_s,
        head_forward_s=head.forward_s,
        head_backward_s=head.backward_s,
        forward_waits=_per_micro_batch(waits, ("forward",)),
        backward_waits=_per_micro_batch(waits, ("backward", "recompute")),
    )


def _is_waited_for(timed: TimedCall) -> bool:
    """Collectives inside the blocks of every micro-batch."""
    call = timed.collective
    return call.axis in ("tp", "cp", "ep") and call.phase != "optimizer" and not call.is_overlappable


def _per_micro_batch(waits: Sequence[TimedCall], phases: tuple[OperationPhase, ...]) -> tuple[PassCall, ...]:
    """What one pass waits for, equal names together."""
    found: dict[str, PassCall] = {}
    for timed in waits:
        call = timed.collective
        if call.phase not in phases:
            continue
        before = found.get(call.name)
        found[call.name] = PassCall(
            name=call.name,
            kind=call.kind,
            axis=call.axis,
            duration_s=timed.total_s / call.rounds + (before.duration_s if before else 0.0),
            slowdown_ratio=timed.slowdown_ratio,
        )
    return tuple(found.values())


def chunk_times(
    context: StageContext, book: WorkBook, waited: Mapping[OperationPhase, Seconds]
) -> tuple[ChunkTimes, ...]:
    """One micro-batch in every chunk of a stage.

    The embedding and the head belong to their chunks; blocks, and what is done or waited for around them, are divided
    as the chunks' blocks compute. The sum over chunks is that of the stage.
    """
    rounds, total = max(1, context.plan.num_microbatches), book.total
    parts = {chunk.index: NO_TIME for chunk in context.stage.chunks}
    for chunk in context.stage.chunks:
        for part, is_there in (("embedding", chunk.has_embedding), ("head", chunk.has_head)):
            if is_there:
                parts[chunk.index] = parts[chunk.index].plus(_table(book, part), times=1)
    tables = NO_TIME
    for times in parts.values():
        tables = tables.plus(times, times=1)
    shares = _shares(context, book)
    forward_s = (total.forward_s + waited["forward"]) / rounds - tables.forward_s
    weight_s = total.weight_backward_s / rounds - tables.weight_backward_s
    backward_s = total.backward_s + total.recompute_s + waited["backward"] + waited["recompute"]
    input_s = backward_s / rounds - tables.backward_s - weight_s
    return tuple(
        ChunkTimes(
            forward_s=parts[chunk.index].forward_s + share * forward_s,
            input_backward_s=parts[chunk.index].backward_s - parts[chunk.index].weight_backward_s + share * input_s,
            weight_backward_s=parts[chunk.index].weight_backward_s + share * weight_s,
        )
        for chunk, share in zip(context.stage.chunks, shares, strict=True)
    )


def _table(book: WorkBook, part: str) -> PhaseTimes:
    return book.of_part("embedding" if part == "embedding" else "head")


def _shares(context: StageContext, book: WorkBook) -> list[float]:
    """Part of each chunk in the computation of the stage's blocks."""
    if len(context.stage.chunks) == 1:
        return [1.0]
    operation = operation_context(context)
    layers = [layer for layer, _ in context.layer_runs]
    seconds = []
    for chunk in context.stage.chunks:
        chunk_s = 0.0
        for layer, count in chunk.layer_runs:
            # Runs of two chunks that meet are one run of the stage, named after the first.
            own = next(other for other in layers if other is layer or other == layer)
            once, again = book.of_layer(own, operation)
            chunk_s += count * (once.forward_s + once.backward_s + again.recompute_s)
        seconds.append(chunk_s)
    total_s = sum(seconds)
    return [chunk_s / total_s if total_s else 1 / len(seconds) for chunk_s in seconds]

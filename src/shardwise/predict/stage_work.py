"""The computation of one stage for one micro-batch, block by block and chunk by chunk."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from shardwise.model import LayerSpec
from shardwise.predict.block_runs import BlockRuns, TimedCall, is_in_block
from shardwise.predict.block_time import BlockRun
from shardwise.predict.compute import NO_WORK, DeviceAndHost, PhaseTimes
from shardwise.predict.launches import launched_work
from shardwise.predict.passes import PassCall
from shardwise.predict.stage_computation import BlockWork, StageWork, TableWork
from shardwise.simulate.pipeline_times import ChunkTimes
from shardwise.step.inventory import OperationPhase
from shardwise.step.operation_context import OperationContext, operation_context
from shardwise.step.operations import BlockBook, GroupPart, OperationGroup
from shardwise.step.stage_context import StageContext
from shardwise.step.token_collectives import is_for_tokens
from shardwise.units import Seconds

NO_TIME = PhaseTimes()


@dataclass(frozen=True, kw_only=True)
class WorkBook:
    """The operations of a stage in groups, with the time of one execution of each."""

    groups: tuple[OperationGroup, ...]
    times: tuple[PhaseTimes, ...]
    blocks: BlockBook
    runs: Mapping[int, BlockRuns] = field(default_factory=dict)
    """Of every block with collectives inside, by the identity of its layer."""

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


def stage_work(
    context: StageContext, book: WorkBook, calls: Iterable[TimedCall], *, is_ahead: bool = False
) -> StageWork:
    """One micro-batch of a stage for the event engine.

    Copies around the blocks are divided evenly among all of them, or left out where the host launches ahead; where only
    some blocks are recomputed, every block gets its share.
    """
    operation = operation_context(context)
    copies = book.of_part("sharding copies")
    num_blocks = max(1, context.stage.num_layers)
    calls = tuple(calls)
    blocks = []
    for number, (layer, count) in enumerate(context.layer_runs):
        once, again = book.of_layer(layer, operation)
        recomputed = context.recomputed_fraction(layer)
        runs = book.runs.get(id(layer))
        forward, backward, again_work = (
            launched_work(one, is_ahead=is_ahead)
            for one in (
                once.forward_work.plus(again.forward_work, times=recomputed),
                once.backward_work,
                again.recompute_work,
            )
        )
        if not is_ahead:
            forward = forward.plus(DeviceAndHost(copies.forward_s), times=1 / num_blocks)
            backward = backward.plus(DeviceAndHost(copies.backward_s), times=1 / num_blocks)
        again_work = NO_WORK.plus(again_work, times=recomputed)
        blocks.append(
            BlockWork(
                name=f"blocks[{number}]",
                count=count,
                forward_s=forward.device_s,
                backward_s=backward.device_s,
                recompute_s=again_work.device_s,
                forward_issue_s=forward.host_s,
                backward_issue_s=backward.host_s + again_work.host_s,
                forward_waits=tuple(_waits(((runs.forward, 1.0),), calls)) if runs else (),
                backward_waits=tuple(_waits(((runs.recompute, recomputed), (runs.backward, 1.0)), calls))
                if runs
                else (),
                runs=runs,
                recomputed_fraction=recomputed,
            )
        )
    return StageWork(
        blocks=tuple(blocks),
        embedding=_table_work(book.of_part("embedding"), calls, ("embedding",), is_ahead=is_ahead),
        head=_table_work(book.of_part("head"), calls, ("head", "vocabulary-parallel"), is_ahead=is_ahead),
    )


def _waits(runs: Iterable[tuple[BlockRun | None, float]], calls: Sequence[TimedCall]) -> Iterator[PassCall]:
    """What nothing hides of the collectives of a block, each as one wait."""
    kinds: dict[tuple[str, str], TimedCall] = {(timed.collective.name, timed.collective.axis): timed for timed in calls}
    for run, share in runs:
        if run is None or not share:
            continue
        for call in run.exposed:
            timed = kinds[call.name, call.axis]
            yield PassCall(
                name=call.name,
                kind=timed.collective.kind,
                axis=call.axis,
                duration_s=share * call.exposed_s,
                slowdown_ratio=timed.slowdown_ratio,
            )


def _table_work(times: PhaseTimes, calls: Sequence[TimedCall], names: tuple[str, ...], *, is_ahead: bool) -> TableWork:
    """A table for one micro-batch, with the collectives around it."""
    waited = [timed for timed in calls if is_in_block(timed.collective) or is_for_tokens(timed.collective)]
    own = [timed for timed in waited if timed.collective.name.startswith(names)]
    waits: dict[OperationPhase, tuple[PassCall, ...]] = {
        phase: tuple(_table_call(timed) for timed in own if timed.collective.phase == phase)
        for phase in ("forward", "backward")
    }
    forward, backward = (launched_work(work, is_ahead=is_ahead) for work in (times.forward_work, times.backward_work))
    return TableWork(
        forward_s=forward.device_s,
        backward_s=backward.device_s,
        forward_issue_s=forward.host_s,
        backward_issue_s=backward.host_s,
        forward_waits=waits["forward"],
        backward_waits=waits["backward"],
    )


def _table_call(timed: TimedCall) -> PassCall:
    call = timed.collective
    return PassCall(
        name=call.name,
        kind=call.kind,
        axis=call.axis,
        duration_s=timed.total_s / call.rounds,
        slowdown_ratio=timed.slowdown_ratio,
    )


def chunk_times(
    context: StageContext, book: WorkBook, total: PhaseTimes, waited: Mapping[OperationPhase, Seconds]
) -> tuple[ChunkTimes, ...]:
    """One micro-batch in every chunk of a stage.

    The embedding and the head belong to their chunks; blocks, and what is done or waited for around them, are divided
    as the chunks' blocks compute. The sum over chunks is that of the stage.
    """
    rounds = max(1, context.rounds)
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
    again_s = total.recompute_s + waited["recompute"]
    late_s = again_s * (1 - 1 / context.times_made_again)
    weight_s = (total.weight_backward_s + late_s) / rounds - tables.weight_backward_s
    backward_s = total.backward_s + again_s + waited["backward"]
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

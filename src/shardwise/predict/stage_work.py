"""Computation of one stage for one micro-batch, block by block and chunk by chunk, with its exposed communication."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from shardwise.model import LayerSpec
from shardwise.predict.block_tasks import TimedCall, is_in_block
from shardwise.predict.block_time import BlockTime, BlockTimes
from shardwise.predict.compute import NO_WORK, DeviceAndHost, PhaseTimes
from shardwise.predict.launches import launched_work
from shardwise.predict.tasks import COMPUTE
from shardwise.simulate.engine import Task
from shardwise.simulate.pipeline_times import ChunkTimes
from shardwise.step.inventory import OperationPhase
from shardwise.step.operation_context import OperationContext, operation_context
from shardwise.step.operations import BlockBook, GroupPart, OperationGroup
from shardwise.step.stage_context import StageContext
from shardwise.step.token_collectives import is_for_tokens
from shardwise.units import Seconds

NO_TIME = PhaseTimes()


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockWork:
    """Equal blocks for one micro-batch, each with its share of the work around them; or the embedding or the head."""

    name: str
    count: int = 1
    forward_s: Seconds = 0.0
    """Seconds of the device, as in the next two fields."""
    backward_s: Seconds = 0.0
    recompute_s: Seconds = 0.0
    forward_issue_s: Seconds = 0.0
    """Seconds that the host takes to launch the forward."""
    backward_issue_s: Seconds = 0.0
    """Seconds that the host takes to launch the backward, recomputation included."""
    forward_waits: tuple[Task, ...] = ()
    """The exposed time of each collective inside the block."""
    backward_waits: tuple[Task, ...] = ()
    """The exposed time of each collective in backward, recomputation included."""
    times: BlockTimes | None = None
    """How one block was simulated by itself; ``None`` when it does not communicate."""
    recomputed_fraction: float = 0.0
    """Share of these blocks that is recomputed."""

    def works(self, phase: OperationPhase) -> tuple[Task, ...]:
        """Computation in a pass, recomputation first."""
        if phase == "forward":
            return (self._work("forward", self.forward_s),)
        backward = self._work("backward", self.backward_s)
        return (self._work("recompute", self.recompute_s), backward) if self.recompute_s else (backward,)

    def _work(self, phase: OperationPhase, duration_s: Seconds) -> Task:
        return Task(name=f"{phase} {self.name}", stream=COMPUTE, duration_s=duration_s, category=phase)

    def waits(self, phase: OperationPhase) -> tuple[Task, ...]:
        """Exposed collectives that computation waits for in a pass."""
        return self.forward_waits if phase == "forward" else self.backward_waits

    def issue_s(self, phase: OperationPhase) -> Seconds:
        """Seconds that the host takes to launch the pass."""
        return self.forward_issue_s if phase == "forward" else self.backward_issue_s


EMBEDDING, HEAD = BlockWork(name="embedding"), BlockWork(name="head")
"""Empty tables, for stages that hold none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageWork:
    """Computation of one stage for one micro-batch, in model order, and what it waits for meanwhile."""

    blocks: tuple[BlockWork, ...]
    embedding: BlockWork = EMBEDDING
    head: BlockWork = HEAD

    def in_order(self, phase: OperationPhase) -> tuple[BlockWork, ...]:
        """Blocks and tables in the order in which a pass comes to them."""
        own = (self.embedding, *self.blocks, self.head)
        return own if phase == "forward" else own[::-1]

    @property
    def num_blocks(self) -> int:
        """Blocks of the stage."""
        return sum(block.count for block in self.blocks)

    def all_waits(self, phase: OperationPhase) -> tuple[Task, ...]:
        """Exposed collectives inside the blocks and tables of a whole pass, those with one name together."""
        found: dict[tuple[str, str], Task] = {}
        totals_s: dict[tuple[str, str], Seconds] = {}
        for block in (*self.blocks, self.embedding, self.head):
            for call in block.waits(phase):
                key = (call.name, call.stream)
                found[key] = call
                totals_s[key] = totals_s.get(key, 0.0) + block.count * call.duration_s
        return tuple(replace(call, duration_s=totals_s[key]) for key, call in found.items())

    def issue_s(self, phase: OperationPhase) -> Seconds:
        """Seconds that the host takes to launch the whole pass."""
        return sum(block.count * block.issue_s(phase) for block in (*self.blocks, self.embedding, self.head))


@dataclass(frozen=True, kw_only=True)
class WorkBook:
    """The operations of a stage in groups, with the time of one execution of each."""

    groups: tuple[OperationGroup, ...]
    times: tuple[PhaseTimes, ...]
    blocks: BlockBook
    block_times: Mapping[int, BlockTimes] = field(default_factory=dict)
    """Simulated times of every block with collectives inside, by the identity of its layer."""

    @property
    def total(self) -> PhaseTimes:
        """Seconds of the whole step."""
        total = NO_TIME
        for group, times in zip(self.groups, self.times, strict=True):
            total = total.plus(times, times=group.count)
        return total

    def of_part(self, part: GroupPart) -> PhaseTimes:
        """Seconds of one execution of the embedding, the head or the copies."""
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
        times = book.block_times.get(id(layer))
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
                forward_waits=tuple(_waits(((times.forward, 1.0),), calls)) if times else (),
                backward_waits=tuple(_waits(((times.recompute, recomputed), (times.backward, 1.0)), calls))
                if times
                else (),
                times=times,
                recomputed_fraction=recomputed,
            )
        )
    return StageWork(
        blocks=tuple(blocks),
        embedding=_table_work(book, "embedding", calls, ("embedding",), is_ahead=is_ahead),
        head=_table_work(book, "head", calls, ("head", "vocabulary-parallel"), is_ahead=is_ahead),
    )


def _waits(times: Iterable[tuple[BlockTime | None, float]], calls: Sequence[TimedCall]) -> Iterator[Task]:
    """Time that a block spends waiting for its collectives, each as one wait."""
    kinds: dict[tuple[str, str], TimedCall] = {(timed.collective.name, timed.collective.axis): timed for timed in calls}
    for time, share in times:
        if time is not None and share:
            yield from (kinds[call.name, call.axis].wait(share * call.exposed_s) for call in time.exposed)


def _table_work(
    book: WorkBook, part: GroupPart, calls: Sequence[TimedCall], names: tuple[str, ...], *, is_ahead: bool
) -> BlockWork:
    """A table for one micro-batch, with the collectives around it."""
    times = book.of_part(part)
    waited = [timed for timed in calls if is_in_block(timed.collective) or is_for_tokens(timed.collective)]
    own = [timed for timed in waited if timed.collective.name.startswith(names)]
    waits: dict[OperationPhase, tuple[Task, ...]] = {
        phase: tuple(
            timed.wait(timed.total_s / timed.collective.rounds) for timed in own if timed.collective.phase == phase
        )
        for phase in ("forward", "backward")
    }
    forward, backward = (launched_work(work, is_ahead=is_ahead) for work in (times.forward_work, times.backward_work))
    return BlockWork(
        name=part,
        forward_s=forward.device_s,
        backward_s=backward.device_s,
        forward_issue_s=forward.host_s,
        backward_issue_s=backward.host_s,
        forward_waits=waits["forward"],
        backward_waits=waits["backward"],
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

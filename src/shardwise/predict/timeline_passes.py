"""The inside of a pass for drawing: its blocks, what they wait for, and the data parallelism beside them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from shardwise.plan import Plan
from shardwise.predict.block_runs import is_under_other_blocks
from shardwise.predict.drawn_pass import block_insides, drawn_buckets, drawn_pass
from shardwise.predict.launches import launches_ahead
from shardwise.predict.offload_time import TO_DEVICE, TO_HOST, copy_s, host_copies
from shardwise.predict.passes import Piece, is_launch_bound
from shardwise.predict.stage_computation import StageWork, TableWork
from shardwise.predict.stage_passes import StagePass, plain_runs, stage_passes
from shardwise.predict.stage_time import DATA_AXES
from shardwise.predict.stage_work import stage_work
from shardwise.predict.step_parts import StepParts
from shardwise.simulate.spans import Span
from shardwise.step.inventory import OperationPhase
from shardwise.step.placement import Chunk
from shardwise.step.stage_context import StageContext
from shardwise.units import Seconds

LAUNCHES = "launches"
"""The stream of the CPU that launches kernels."""


@dataclass(frozen=True, slots=True)
class _Key:
    stage: int
    chunk: int
    phase: OperationPhase
    data_pass: int | None
    """Which of the stage's passes with data parallelism it is; ``None`` for one without."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Inside:
    """Spans of one pass from 0 on, on streams without their stage."""

    spans: tuple[Span, ...]
    duration_s: Seconds

    @staticmethod
    def of(spans: Sequence[Span]) -> "_Inside":
        """Spans that begin at 0."""
        return _Inside(
            spans=tuple(span for span in spans if span.duration_s > 0),
            duration_s=max((span.end_s for span in spans), default=0.0),
        )


class StagePasses:
    """Simulates every kind of pass once."""

    def __init__(self, plan: Plan, parts: StepParts) -> None:
        self._plan = plan
        self._parts = parts
        self._found: dict[_Key, _Inside] = {}
        self._issued: dict[_Key, tuple[Piece, ...]] = {}
        self._data: dict[int, tuple[StagePass, ...]] = {}
        self._works: dict[int, tuple[StageContext, StageWork]] = {}

    def num_spans(self, stage: int, span: Span) -> int:
        """Spans that a pass is drawn with."""
        key = self._key(stage, span)
        return 1 if key is None else len(self._inside(key).spans)

    def inside(self, stage: int, span: Span) -> Iterator[Span]:
        """The spans of a pass, stretched to its own duration."""
        key = self._key(stage, span)
        if key is None:
            yield span
            return
        inside = self._inside(key)
        ratio = span.duration_s / inside.duration_s if inside.duration_s else 0.0
        for own in inside.spans:
            yield Span(
                stream=f"stage {stage}/{own.stream}",
                name=own.name,
                category=own.category,
                start_s=span.start_s + ratio * own.start_s,
                end_s=span.start_s + ratio * own.end_s,
                micro_batch=span.micro_batch,
                chunk=span.chunk,
            )
        yield from self._launched(stage, span, key)
        yield from self._hidden(stage, span, key.phase)
        yield from self._copies(stage, span, key.phase)

    def _launched(self, stage: int, span: Span, key: _Key) -> Iterator[Span]:
        """What the CPU launches in a pass, where that takes longer than to run it for some block.

        A CPU that is ahead launches one piece after the other; one that is not starts a piece with the device.
        """
        pieces = self._launches(key)
        line_s = sum(piece.line_s for piece in pieces)
        ratio = span.duration_s / line_s if line_s else 0.0
        is_ahead = launches_ahead(self._plan)
        free_s, turn_s = span.start_s, span.start_s
        for piece in pieces:
            start_s = free_s if is_ahead else max(free_s, turn_s)
            free_s = min(start_s + piece.issue_s, span.end_s)
            turn_s += ratio * piece.line_s
            if free_s > start_s:
                yield Span(
                    stream=f"stage {stage}/{LAUNCHES}",
                    name=f"launch {piece.works[-1].name}",
                    category="other",
                    start_s=start_s,
                    end_s=free_s,
                    micro_batch=span.micro_batch,
                    chunk=span.chunk,
                )

    def _launches(self, key: _Key) -> tuple[Piece, ...]:
        """The pieces of a pass with the time to launch each; none where the CPU is never what is waited for."""
        plain = replace(key, data_pass=None)
        found = self._issued.get(plain)
        if found is None:
            context, _ = self._work(key.stage)
            clock = self._parts.clock
            work = stage_work(context, clock.work_book(context), clock.timed_calls(context), is_ahead=True)
            if len(context.stage.chunks) > 1:
                work = _of_chunk(context, work, _chunk(context, key.chunk))
            runs = plain_runs(context, work, key.phase)
            is_waited_for = is_launch_bound(runs[1:-1])  # tables alone are no reason for a row
            pieces = [piece for run in runs for piece in [run] * run.count] if is_waited_for else []
            found = self._issued[plain] = tuple(pieces)
        return found

    def _copies(self, stage: int, span: Span, phase: OperationPhase) -> Iterator[Span]:
        """Copies to and from the host, as far as they run beside the pass."""
        recipe = self._plan.recipe
        if recipe.offload == "none" and not recipe.activation_offload:
            return
        context, _ = self._work(stage)
        copies = host_copies(context)
        is_last = span.micro_batch == self._plan.num_microbatches - 1
        coming = copies.parameter_bytes + (copies.activation_bytes if phase == "backward" else 0.0)
        leaving = copies.activation_bytes if phase == "forward" else copies.gradient_bytes if is_last else 0.0
        num_chunks = len(context.stage.chunks)
        for direction, num_bytes in ((TO_DEVICE, coming), (TO_HOST, leaving)):
            if num_bytes:
                yield Span(
                    stream=f"stage {stage}/{direction}",
                    name=f"copies {direction}",
                    category="offload",
                    start_s=span.start_s,
                    end_s=span.start_s + min(span.duration_s, copy_s(context, num_bytes) / num_chunks),
                    micro_batch=span.micro_batch,
                    chunk=span.chunk,
                )

    def _hidden(self, stage: int, span: Span, phase: OperationPhase) -> Iterator[Span]:
        """Exchanges of experts that run under the computation of another micro-batch."""
        context, _ = self._work(stage)
        num_passes = context.rounds * len(context.stage.chunks)
        for call in self._parts.times[stage].collectives:
            own = call.collective
            if not is_under_other_blocks(own) or own.phase != phase:
                continue
            yield Span(
                stream=f"stage {stage}/{own.axis}",
                name=own.name,
                category=own.kind,
                start_s=span.start_s,
                end_s=span.start_s + min(span.duration_s, call.total_s / num_passes),
                micro_batch=span.micro_batch,
                chunk=span.chunk,
            )

    def _key(self, stage: int, span: Span) -> _Key | None:
        """Which pass a span is; ``None`` for weight gradients moved away from their pass."""
        if span.chunk is None or span.name == "weight_backward" or span.category not in ("forward", "backward"):
            return None
        phase: OperationPhase = "forward" if span.category == "forward" else "backward"
        data_pass = None
        if self._plan.layout.pp == 1:
            edge = 0 if phase == "forward" else self._plan.num_microbatches - 1
            data_pass = self._data_pass(stage, phase, is_edge=span.micro_batch == edge)
        return _Key(stage, span.chunk, phase, data_pass)

    def _data_pass(self, stage: int, phase: OperationPhase, *, is_edge: bool) -> int | None:
        """The pass of a micro-batch: that with everything at the edge of the step, what repeats in the others."""
        own = [(number, one) for number, one in enumerate(self._data_passes(stage)) if one.phase == phase]
        if is_edge:
            return own[0][0] if own else None
        repeating = [number for number, one in own if one.rounds > 1 or one is not own[0][1]]
        return repeating[-1] if repeating else None

    def _inside(self, key: _Key) -> _Inside:
        found = self._found.get(key)
        if found is None:
            found = self._found[key] = self._simulated(key)
        return found

    def _simulated(self, key: _Key) -> _Inside:
        context, work = self._work(key.stage)
        if len(context.stage.chunks) > 1:
            work = _of_chunk(context, work, _chunk(context, key.chunk))
        insides = block_insides(work, key.phase)
        plain = plain_runs(context, work, key.phase)
        if key.data_pass is None:
            return _Inside.of(drawn_pass(plain, insides, is_throttled=True))
        one = self._data_passes(key.stage)[key.data_pass]
        if one.is_throttled:
            return _Inside.of(
                drawn_pass(one.runs, insides, is_throttled=True, prefetch_units=one.prefetch_units),
            )
        return _Inside.of(drawn_buckets(one.runs, drawn_pass(plain, insides, is_throttled=True)))

    def _data_passes(self, stage: int) -> tuple[StagePass, ...]:
        found = self._data.get(stage)
        if found is None:
            context, work = self._work(stage)
            calls = self._parts.clock.timed_calls(context)
            data = [timed for timed in calls if timed.collective.axis in DATA_AXES]
            found = self._data[stage] = tuple(stage_passes(context, data, work))
        return found

    def _work(self, stage: int) -> tuple[StageContext, StageWork]:
        found = self._works.get(stage)
        if found is None:
            context = StageContext(plan=self._plan, stage=self._parts.stages[stage])
            clock = self._parts.clock
            work = stage_work(context, clock.work_book(context), clock.timed_calls(context))
            found = self._works[stage] = (context, work)
        return found


def _chunk(context: StageContext, index: int) -> Chunk:
    return next(chunk for chunk in context.stage.chunks if chunk.index == index)


def _of_chunk(context: StageContext, work: StageWork, chunk: Chunk) -> StageWork:
    """The part of one chunk in the work of its stage."""
    layers = [layer for layer, _ in context.layer_runs]
    blocks = []
    for layer, count in chunk.layer_runs:
        run = next(number for number, other in enumerate(layers) if other is layer or other == layer)
        blocks.append(replace(work.blocks[run], count=count))
    return replace(
        work,
        blocks=tuple(blocks),
        embedding=work.embedding if chunk.has_embedding else TableWork(),
        head=work.head if chunk.has_head else TableWork(),
    )

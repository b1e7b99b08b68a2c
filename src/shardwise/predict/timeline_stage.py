"""The passes of one drawn stage, where its schedule places them.

A pass is drawn as it was simulated for the step's time. It lasts as long as its schedule says, and all passes together
wait for each collective as long as the prediction says, so that the exposed seconds of a stage's spans sum to those of
its components.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from shardwise.plan import Plan
from shardwise.predict.block_tasks import is_under_other_blocks
from shardwise.predict.launches import launches_ahead
from shardwise.predict.offload_time import TO_DEVICE, TO_HOST, copy_s, host_copies
from shardwise.predict.pass_spans import PassSpans, SpanKey, bucketed_pass, simulated_pass
from shardwise.predict.passes import Piece, is_launch_bound
from shardwise.predict.stage_passes import StagePass, plain_runs
from shardwise.predict.stage_time import DATA_AXES, PASS_PHASES, CollectiveTime, StageClock, StageTime
from shardwise.predict.stage_work import EMBEDDING, HEAD, StageWork, stage_work
from shardwise.predict.tasks import COMPUTE
from shardwise.simulate.spans import Span
from shardwise.step.inventory import Collective, OperationPhase
from shardwise.step.layer_placement import Chunk, Stage
from shardwise.step.stage_context import StageContext
from shardwise.units import Seconds

LAUNCHES = "launches"
"""The stream of the CPU that launches kernels."""
WEIGHTS = "weight_backward"
"""A pass of weight gradients alone, which schedules put where a rank would wait."""


@dataclass(frozen=True, slots=True)
class PassKey:
    """Passes of a stage with one key take equally long and look alike."""

    chunk: int
    name: str
    """``forward``, ``backward``, ``input_backward`` or ``weight_backward``."""
    is_edge: bool = False
    """Whether it is the first forward or the last backward of a step without a pipeline."""

    @property
    def phase(self) -> OperationPhase:
        """Phase that the operations of the pass belong to."""
        return "forward" if self.name == "forward" else "backward"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedPass:
    """A pass of one micro-batch of the step."""

    key: PassKey
    micro_batch: int
    start_s: Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class _Unlisted:
    """The part of each pass in a collective that the simulated passes do not list.

    A part runs beside the pass, the rest is waited for at its end.
    """

    span: Span
    hidden_s: Seconds
    exposed_s: Seconds
    is_at_edge: bool
    """Whether only the pass at the edge of the step has the collective."""


class StageDrawing:
    """Draws the passes of one stage."""

    def __init__(self, plan: Plan, clock: StageClock, stage: Stage, time: StageTime, scheduled: Sequence[Span]) -> None:
        """Take one stage.

        Args:
            plan: the plan that is drawn.
            clock: the clock that timed it.
            stage: the stage that is drawn.
            time: the time of that stage.
            scheduled: its passes where a schedule places them; without a pipeline they follow each other.
        """
        self._plan, self._clock, self._time = plan, clock, time
        self._context = StageContext(plan=plan, stage=stage)
        placed = (PassKey(chunk=span.chunk or 0, name=span.name) for span in scheduled)
        self._keys = tuple(placed if plan.layout.pp > 1 else _alone(plan))
        lengths = {key: span.duration_s for key, span in zip(self._keys, scheduled, strict=False)}
        self._simulated = {key: self._simulate(key, lengths.get(key, 0.0)) for key in dict.fromkeys(self._keys)}
        self._listed = {phase: self._exposed_in_passes(phase) for phase in PASS_PHASES}
        self._ratios = {phase: self._ratios_of(phase) for phase in PASS_PHASES}
        self._unlisted = {phase: tuple(self._unlisted_of(phase)) for phase in PASS_PHASES}
        self._drawn = {key: self._fitted(key, lengths.get(key)) for key in self._simulated}
        self.passes = tuple(self._placed(scheduled))

    def _placed(self, scheduled: Sequence[Span]) -> Iterator[PlacedPass]:
        now = 0.0
        for number, key in enumerate(self._keys):
            if scheduled:
                micro_batch = scheduled[number].micro_batch or 0
                yield PlacedPass(key=key, micro_batch=micro_batch, start_s=scheduled[number].start_s)
            else:
                yield PlacedPass(key=key, micro_batch=number // 2, start_s=now)
                now += self._drawn[key].duration_s

    @property
    def num_spans(self) -> int:
        """Spans of all passes block by block."""
        return sum(len(self._drawn[key].spans) for key in self._keys)

    def spans(self, *, is_whole: bool) -> Iterator[Span]:
        """All passes block by block, or only those of the first and the last micro-batch when not all are whole."""
        launches = {key: tuple(self._launched(key)) for key in self._drawn}
        summaries = {} if is_whole else {key: drawn.summary() for key, drawn in self._drawn.items()}
        for one in self.passes:
            if is_whole or one.micro_batch in (0, self._plan.num_microbatches - 1):
                yield from self._on_stage(one, self._drawn[one.key].spans)
                yield from self._on_stage(one, launches[one.key])
            else:
                yield from self._on_stage(one, summaries[one.key].spans)
            yield from self._on_stage(one, self._copies(one))

    def _on_stage(self, one: PlacedPass, spans: Iterable[Span]) -> Iterator[Span]:
        for span in spans:
            yield Span(
                stream=f"stage {self._time.stage}/{span.stream}",
                name=span.name,
                category=span.category,
                start_s=one.start_s + span.start_s,
                end_s=one.start_s + span.end_s,
                micro_batch=one.micro_batch,
                chunk=one.key.chunk,
                exposed_s=span.exposed_s,
            )

    # What the passes of a stage wait for together.

    def _calls(self, phase: OperationPhase) -> Iterator[CollectiveTime]:
        """Collectives of its passes, recomputation with backward; a pipeline places data parallelism and messages."""
        for time in self._time.collectives:
            call = time.collective
            is_placed = call.axis in DATA_AXES or (call.axis == "pp" and call.is_overlappable)
            is_own = call.phase == "forward" if phase == "forward" else call.phase in ("backward", "recompute")
            if is_own and not (is_placed and self._plan.layout.pp > 1):
                yield time

    def _exposed_in_passes(self, phase: OperationPhase) -> dict[SpanKey, Seconds]:
        """Exposed seconds of each collective, summed over the simulated passes."""
        found: dict[SpanKey, Seconds] = {}
        for key in self._keys:
            for name, exposed_s in self._simulated[key].exposed.items() if key.phase == phase else ():
                found[name] = found.get(name, 0.0) + exposed_s
        return found

    def _ratios_of(self, phase: OperationPhase) -> dict[SpanKey, float]:
        """Exposed seconds of each collective as predicted, over those of the simulated passes."""
        listed = self._listed[phase]
        predicted = dict.fromkeys(listed, 0.0)
        for time in self._calls(phase):
            key = (time.collective.name, time.collective.axis)
            if key in predicted:
                predicted[key] += time.exposed_s
        return {name: predicted[name] / exposed_s if exposed_s else 0.0 for name, exposed_s in listed.items()}

    def _unlisted_of(self, phase: OperationPhase) -> Iterator[_Unlisted]:
        passes = [key for key in self._keys if key.phase == phase and key.name != WEIGHTS]
        for time in self._calls(phase):
            call = time.collective
            is_beside = is_under_other_blocks(call)
            if self._listed[phase].get((call.name, call.axis)) or not (time.exposed_s or is_beside):
                continue
            is_at_edge = call.axis in DATA_AXES and call.rounds == 1
            count = sum(key.is_edge for key in passes) if is_at_edge else len(passes)
            if count:
                yield _Unlisted(
                    span=Span(stream=_stream(call), name=call.name, category=call.kind, start_s=0.0, end_s=0.0),
                    hidden_s=max(0.0, time.total_s - time.exposed_s) / count if is_beside else 0.0,
                    exposed_s=time.exposed_s / count,
                    is_at_edge=is_at_edge,
                )

    def _fitted(self, key: PassKey, duration_s: Seconds | None) -> PassSpans:
        """The simulated pass in the time that the step gives it, and behind it what only waits."""
        simulated, ratios = self._simulated[key], self._ratios[key.phase]
        simulated_s = sum(simulated.exposed.values())
        waits_s = sum(ratios[name] * exposed_s for name, exposed_s in simulated.exposed.items())
        waiting = () if key.name == WEIGHTS else self._unlisted[key.phase]
        unlisted = [one for one in waiting if key.is_edge or not one.is_at_edge]
        if duration_s is None:
            own_s = self._computed_s(key.phase) + waits_s
        else:
            own_s = duration_s - sum(one.exposed_s for one in unlisted)
        fitted = simulated.fitted(own_s, waits_ratio=waits_s / simulated_s if simulated_s else 1.0)
        spans = list(fitted.laid(ratios).spans)
        now, hidden_until_s = own_s, 0.0
        for one in unlisted:
            hidden_s = min(one.hidden_s, own_s - hidden_until_s)
            spans += (
                replace(one.span, start_s=hidden_until_s, end_s=hidden_until_s + hidden_s),
                replace(one.span, start_s=now, end_s=now + one.exposed_s, exposed_s=one.exposed_s),
            )
            hidden_until_s += hidden_s
            now += one.exposed_s
        return PassSpans(spans=tuple(span for span in spans if span.duration_s > 0), duration_s=now)

    def _computed_s(self, phase: OperationPhase) -> Seconds:
        """Seconds of computation of one micro-batch, as the prediction counts them."""
        compute = self._time.compute
        total_s = compute.forward_s if phase == "forward" else compute.backward_s + compute.recompute_s
        return total_s / self._plan.num_microbatches

    # The simulated passes.

    def _simulate(self, key: PassKey, duration_s: Seconds) -> PassSpans:
        if key.name == WEIGHTS:
            span = Span(stream=COMPUTE, name=key.name, category="backward", start_s=0.0, end_s=duration_s)
            return PassSpans(spans=(span,), duration_s=duration_s)
        work = self._of_chunk(self._time.work, key)
        plain = plain_runs(self._context, work, key.phase)
        one = self._data_pass(key) if self._plan.layout.pp == 1 else None
        if one is None:
            return simulated_pass(plain, work, key.phase, is_throttled=True)
        if one.is_throttled:
            return simulated_pass(one.runs, work, key.phase, is_throttled=True, prefetch_units=one.prefetch_units)
        return bucketed_pass(one.runs, simulated_pass(plain, work, key.phase, is_throttled=True))

    def _data_pass(self, key: PassKey) -> StagePass | None:
        """The pass with everything at the edge of the step, what repeats in the others."""
        own = [one for one in self._time.passes if one.phase == key.phase]
        if key.is_edge:
            return own[0] if own else None
        repeating = [one for one in own if one.rounds > 1 or one is not own[0]]
        return repeating[-1] if repeating else None

    def _of_chunk(self, work: StageWork, key: PassKey) -> StageWork:
        """The part of one chunk in the work of its stage."""
        chunks = self._context.stage.chunks
        if self._plan.layout.pp == 1 or len(chunks) == 1:
            return work
        chunk: Chunk = next(one for one in chunks if one.index == key.chunk)
        layers = [layer for layer, _ in self._context.layer_runs]
        runs = [(next(n for n, own in enumerate(layers) if own == layer), count) for layer, count in chunk.layer_runs]
        return replace(
            work,
            blocks=tuple(replace(work.blocks[number], count=count) for number, count in runs),
            embedding=work.embedding if chunk.has_embedding else EMBEDDING,
            head=work.head if chunk.has_head else HEAD,
        )

    # What runs beside passes.

    @cached_property
    def _launching_work(self) -> StageWork:
        """The work of the stage with the launches of every block, whether or not they matter."""
        if launches_ahead(self._plan):
            return self._time.work
        clock, context = self._clock, self._context
        return stage_work(context, clock.work_book(context), clock.timed_calls(context), is_ahead=True)

    def _launched(self, key: PassKey) -> Iterator[Span]:
        """Spans of the CPU's launches in a pass, where launching some block takes longer than running it.

        A CPU that is ahead launches one piece after the other; one that is not starts a piece with the device.
        """
        if key.name == WEIGHTS:
            return
        work = self._of_chunk(self._launching_work, key)
        runs = plain_runs(self._context, work, key.phase)
        if not is_launch_bound(runs[1:-1]):  # tables alone are no reason for a row
            return
        pieces: list[Piece] = [piece for run in runs for piece in [run] * run.count]
        duration_s, line_s = self._drawn[key].duration_s, sum(piece.line_s for piece in pieces)
        ratio = duration_s / line_s if line_s else 0.0
        is_ahead = launches_ahead(self._plan)
        free_s = turn_s = 0.0
        for piece in pieces:
            start_s = free_s if is_ahead else max(free_s, turn_s)
            free_s = min(start_s + piece.issue_s, duration_s)
            turn_s += ratio * piece.line_s
            name = f"launch {piece.works[-1].name}"
            if free_s > start_s:
                yield Span(stream=LAUNCHES, name=name, category="other", start_s=start_s, end_s=free_s)

    def _copies(self, one: PlacedPass) -> Sequence[Span]:
        """Copies to and from the host, as far as they run beside the pass."""
        recipe, phase = self._plan.recipe, one.key.phase
        if (recipe.offload == "none" and not recipe.activation_offload) or one.key.name == WEIGHTS:
            return ()
        copies = host_copies(self._context)
        is_last = one.micro_batch == self._plan.num_microbatches - 1
        coming = copies.parameter_bytes + (copies.activation_bytes if phase == "backward" else 0.0)
        leaving = copies.activation_bytes if phase == "forward" else copies.gradient_bytes if is_last else 0.0
        num_chunks = len(self._context.stage.chunks)
        return [
            Span(
                stream=direction,
                name=f"copies {direction}",
                category="offload",
                start_s=0.0,
                end_s=min(self._drawn[one.key].duration_s, copy_s(self._context, num_bytes) / num_chunks),
            )
            for direction, num_bytes in ((TO_DEVICE, coming), (TO_HOST, leaving))
            if num_bytes
        ]


def _stream(call: Collective) -> str:
    """The stream of a collective; messages have one for each direction."""
    return f"pp {call.phase}" if call.axis == "pp" else call.axis


def _alone(plan: Plan) -> Iterator[PassKey]:
    """Passes without a pipeline: forward and backward of one micro-batch after the other."""
    last = plan.num_microbatches - 1
    for number in range(last + 1):
        yield PassKey(chunk=0, name="forward", is_edge=number == 0)
        yield PassKey(chunk=0, name="backward", is_edge=number == last)

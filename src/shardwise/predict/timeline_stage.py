"""The passes of one drawn stage, where its schedule places them.

A pass is drawn as it was simulated for the step's time. It lasts as long as its schedule says, and all passes together
wait for each collective as long as the prediction says, so that the exposed seconds of a stage's spans sum to those of
its components.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from shardwise.plan import Plan
from shardwise.predict.block_tasks import is_under_other_blocks
from shardwise.predict.launches import launches_ahead
from shardwise.predict.offload_time import TO_DEVICE, TO_HOST, copy_s, host_copies
from shardwise.predict.pass_spans import PassSpans, SpanKey, bucketed_pass, simulated_pass
from shardwise.predict.passes import Piece, is_launch_bound
from shardwise.predict.stage_passes import StagePass, plain_runs
from shardwise.predict.stage_time import DATA_AXES, StageClock, StageTime
from shardwise.predict.stage_work import EMBEDDING, HEAD, StageWork, stage_work
from shardwise.predict.tasks import COMPUTE
from shardwise.simulate.spans import Span
from shardwise.step.inventory import Collective, OperationPhase
from shardwise.step.placement import Chunk, Stage
from shardwise.step.stage_context import StageContext
from shardwise.units import Seconds

LAUNCHES = "launches"
"""The stream of the CPU that launches kernels."""


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
        """Of the pass."""
        return "forward" if self.name == "forward" else "backward"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedPass:
    """A pass of one micro-batch of the step."""

    key: PassKey
    micro_batch: int
    start_s: Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class _Unlisted:
    """What each pass has of a collective that the simulated passes do not list.

    A part runs beside the pass, the rest is waited for at its end.
    """

    span: Span
    hidden_s: Seconds
    exposed_s: Seconds
    is_at_edge: bool
    """Whether only the pass at the edge of the step has it."""


class StageDrawing:
    """Draws the passes of one stage."""

    def __init__(self, plan: Plan, clock: StageClock, stage: Stage, time: StageTime, scheduled: Sequence[Span]) -> None:
        """Take one stage.

        Args:
            plan: what is drawn.
            clock: that timed it.
            stage: which of its stages.
            time: of that stage.
            scheduled: its passes where a schedule places them; without a pipeline they follow each other.
        """
        self._plan, self._clock, self._time = plan, clock, time
        self._context = StageContext(plan=plan, stage=stage)
        self._simulated: dict[PassKey, PassSpans] = {}
        self._durations: dict[PassKey, Seconds] = {}
        self._drawn: dict[PassKey, PassSpans] = {}
        self._summaries: dict[PassKey, PassSpans] = {}
        self._launches: dict[PassKey, tuple[Span, ...]] = {}
        placed = (PassKey(chunk=span.chunk or 0, name=span.name) for span in scheduled)
        self._keys = tuple(placed if plan.layout.pp > 1 else _alone(plan))
        for key, span in zip(self._keys, scheduled, strict=False):
            self._durations.setdefault(key, span.duration_s)
        self.passes = tuple(self._placed(scheduled))

    def _placed(self, scheduled: Sequence[Span]) -> Iterator[PlacedPass]:
        now = 0.0
        for number, key in enumerate(self._keys):
            if scheduled:
                micro_batch = scheduled[number].micro_batch or 0
                yield PlacedPass(key=key, micro_batch=micro_batch, start_s=scheduled[number].start_s)
                continue
            yield PlacedPass(key=key, micro_batch=number // 2, start_s=now)
            now += self._duration_s(key)

    @property
    def num_spans(self) -> int:
        """Spans of all passes block by block."""
        return sum(len(self._pass(key).spans) for key in self._keys)

    def spans(self, *, is_whole: bool) -> Iterator[Span]:
        """All passes block by block, or only those of the first and the last micro-batch when not all are whole."""
        for one in self.passes:
            if is_whole or one.micro_batch in (0, self._plan.num_microbatches - 1):
                yield from self._on_stage(one, self._pass(one.key).spans)
                yield from self._on_stage(one, self._launched(one.key))
            else:
                yield from self._on_stage(one, self._summary(one.key).spans)
            yield from self._on_stage(one, self._copies(one))

    def _on_stage(self, one: PlacedPass, spans: Sequence[Span]) -> Iterator[Span]:
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

    def _pass(self, key: PassKey) -> PassSpans:
        """A pass as it is drawn, from 0 on."""
        found = self._drawn.get(key)
        if found is None:
            found = self._drawn[key] = self._fitted(key)
        return found

    def _summary(self, key: PassKey) -> PassSpans:
        found = self._summaries.get(key)
        if found is None:
            found = self._summaries[key] = self._pass(key).summary()
        return found

    def _fitted(self, key: PassKey) -> PassSpans:
        """The simulated pass in the time that the step gives it, and behind it what only waits."""
        simulated, ratios = self._simulation(key), self._ratios[key.phase]
        waits_s = {name: ratios.get(name, 0.0) * seconds for name, seconds in simulated.exposed.items()}
        simulated_s = sum(simulated.exposed.values())
        unlisted = list(self._unlisted_of(key))
        own_s = self._duration_s(key) - sum(one.exposed_s for one in unlisted)
        ratio = sum(waits_s.values()) / simulated_s if simulated_s else 1.0
        spans = list(simulated.fitted(own_s, waits_ratio=ratio).laid(ratios).spans)
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

    def _duration_s(self, key: PassKey) -> Seconds:
        """As the schedule says; without one, computation and what this pass waits for."""
        found = self._durations.get(key)
        if found is not None:
            return found
        compute = self._time.compute
        computed_s = compute.forward_s if key.phase == "forward" else compute.backward_s + compute.recompute_s
        ratios = self._ratios[key.phase]
        waits_s = sum(ratios[name] * seconds for name, seconds in self._simulation(key).exposed.items())
        unlisted_s = sum(one.exposed_s for one in self._unlisted_of(key))
        found = self._durations[key] = computed_s / self._plan.num_microbatches + waits_s + unlisted_s
        return found

    # What the passes of a stage wait for together.

    @cached_property
    def _calls(self) -> dict[OperationPhase, list[tuple[Collective, Seconds, Seconds]]]:
        """Collectives of passes by phase, with their time and what of it is exposed; recomputation is backward.

        A pipeline places messages and data parallelism itself.
        """
        found: dict[OperationPhase, list[tuple[Collective, Seconds, Seconds]]] = {"forward": [], "backward": []}
        for time in self._time.collectives:
            call = time.collective
            is_placed = call.axis in DATA_AXES or (call.axis == "pp" and call.is_overlappable)
            if call.phase != "optimizer" and not (is_placed and self._plan.layout.pp > 1):
                phase: OperationPhase = "forward" if call.phase == "forward" else "backward"
                found[phase].append((call, time.total_s, time.exposed_s))
        return found

    @cached_property
    def _simulated_s(self) -> dict[OperationPhase, dict[SpanKey, Seconds]]:
        """What all simulated passes expose, by phase."""
        found: dict[OperationPhase, dict[SpanKey, Seconds]] = {"forward": {}, "backward": {}}
        for key in self._keys:
            own = found[key.phase]
            for name, seconds in self._simulation(key).exposed.items():
                own[name] = own.get(name, 0.0) + seconds
        return found

    @cached_property
    def _ratios(self) -> dict[OperationPhase, dict[SpanKey, float]]:
        """What the prediction says to be exposed, over what the simulated passes expose."""
        found: dict[OperationPhase, dict[SpanKey, float]] = {}
        for phase, simulated in self._simulated_s.items():
            predicted = dict.fromkeys(simulated, 0.0)
            for call, _, exposed_s in self._calls[phase]:
                if (call.name, call.axis) in predicted:
                    predicted[call.name, call.axis] += exposed_s
            found[phase] = {name: predicted[name] / seconds if seconds else 0.0 for name, seconds in simulated.items()}
        return found

    @cached_property
    def _unlisted(self) -> dict[OperationPhase, list[_Unlisted]]:
        found: dict[OperationPhase, list[_Unlisted]] = {"forward": [], "backward": []}
        for phase, calls in self._calls.items():
            simulated = self._simulated_s[phase]
            passes = [key for key in self._keys if key.phase == phase and key.name != "weight_backward"]
            for call, total_s, exposed_s in calls:
                key = (call.name, call.axis)
                is_beside = is_under_other_blocks(call)
                if simulated.get(key) or not (exposed_s or is_beside):
                    continue
                is_at_edge = call.axis in DATA_AXES and call.rounds == 1
                count = sum(one.is_edge for one in passes) if is_at_edge else len(passes)
                if not count:
                    continue
                hidden_s = max(0.0, total_s - exposed_s) if is_beside else 0.0
                found[phase].append(
                    _Unlisted(
                        span=Span(stream=_stream(call), name=call.name, category=call.kind, start_s=0.0, end_s=0.0),
                        hidden_s=hidden_s / count,
                        exposed_s=exposed_s / count,
                        is_at_edge=is_at_edge,
                    )
                )
        return found

    def _unlisted_of(self, key: PassKey) -> Iterator[_Unlisted]:
        if key.name != "weight_backward":
            yield from (one for one in self._unlisted[key.phase] if key.is_edge or not one.is_at_edge)

    # The simulated passes.

    def _simulation(self, key: PassKey) -> PassSpans:
        found = self._simulated.get(key)
        if found is None:
            found = self._simulated[key] = self._simulate(key)
        return found

    def _simulate(self, key: PassKey) -> PassSpans:
        if key.name == "weight_backward":
            span = Span(stream=COMPUTE, name=key.name, category="backward", start_s=0.0, end_s=self._durations[key])
            return PassSpans(spans=(span,), duration_s=span.end_s)
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

    def _launched(self, key: PassKey) -> tuple[Span, ...]:
        found = self._launches.get(key)
        if found is None:
            found = self._launches[key] = tuple(self._launch_spans(key))
        return found

    def _launch_spans(self, key: PassKey) -> Iterator[Span]:
        """What the CPU launches in a pass, where that takes longer than to run it for some block.

        A CPU that is ahead launches one piece after the other; one that is not starts a piece with the device.
        """
        if key.name == "weight_backward":
            return
        work = self._of_chunk(self._launching_work, key)
        runs = plain_runs(self._context, work, key.phase)
        if not is_launch_bound(runs[1:-1]):  # tables alone are no reason for a row
            return
        pieces: list[Piece] = [piece for run in runs for piece in [run] * run.count]
        duration_s, line_s = self._duration_s(key), sum(piece.line_s for piece in pieces)
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
        if (recipe.offload == "none" and not recipe.activation_offload) or one.key.name == "weight_backward":
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
                end_s=min(self._duration_s(one.key), copy_s(self._context, num_bytes) / num_chunks),
            )
            for direction, num_bytes in ((TO_DEVICE, coming), (TO_HOST, leaving))
            if num_bytes
        ]


def _stream(call: Collective) -> str:
    """Messages have one a direction."""
    return f"pp {call.phase}" if call.axis == "pp" else call.axis


def _alone(plan: Plan) -> Iterator[PassKey]:
    """Without a pipeline: forward and backward of one micro-batch after the other."""
    last = plan.num_microbatches - 1
    for number in range(last + 1):
        yield PassKey(chunk=0, name="forward", is_edge=number == 0)
        yield PassKey(chunk=0, name="backward", is_edge=number == last)

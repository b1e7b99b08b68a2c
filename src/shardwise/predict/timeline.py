"""The predicted step of a few ranks, span by span, for drawing.

Every duration is the prediction's own: passes come from the event engine block by block, pipelines from their schedule,
and the slowest stage ends where ``predict_time`` says the step ends. One rank stands for all of its stage; the stages
drawn are the first two, the middle one, the last two and the slowest.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from shardwise.plan import Plan
from shardwise.predict.exposed import exposed_communication
from shardwise.predict.offload_time import OffloadTime
from shardwise.predict.passes import COMPUTE
from shardwise.predict.pipeline_time import gathers_at_step_begin, pipeline_times, schedule_shape
from shardwise.predict.stage_time import CollectiveTime, is_before_update, is_data_parallel
from shardwise.predict.step_parts import StepParts, step_parts
from shardwise.predict.time import time_components
from shardwise.predict.timeline_passes import StagePasses
from shardwise.prediction import ExposedCommunication, TimeEntry
from shardwise.simulate.pipeline import pipeline_spans
from shardwise.simulate.spans import Span
from shardwise.step.inventory import Axis, Collective, OperationPhase
from shardwise.units import Bytes, Seconds

TimelineSource = Literal["simulated", "measured"]
MOST_SPANS = 40_000
"""Of all ranks together. Beyond it only the first and the last micro-batch of a rank are drawn block by block."""
INSIDE_S = 1e-6
"""An arrow begins this long before the end of the span that sends it, so that it belongs to it."""
PIPELINE_NOTE = "data parallelism of a pipeline is one span per collective, its hidden part beside the passes"
NO_ORDER_NOTE = "no order of passes can be written for these micro-batches, so only the end of the step is drawn"
NOTE = "simulated by shardwise predict from the plan alone; nothing of it was measured"


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineCall:
    """One collective of a rank: what a span with its name and axis carries, and how."""

    name: str
    axis: Axis
    group_size: int
    num_bytes: Bytes
    """Payload of one call, the full tensor for all-gather, reduce-scatter and all-reduce."""
    count: int
    """Calls of a step; a span may be several of them."""
    algorithm: str
    protocol: str
    bottleneck: str
    basis: str
    """Whether its time was measured, scaled or modelled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineRank:
    """One rank and what it does in the step."""

    rank: int
    """Of the whole job."""
    stage: int
    spans: tuple[Span, ...]
    """On streams such as ``stage 0/compute``."""
    calls: tuple[TimelineCall, ...] = ()
    """The collectives that its spans of communication are named after."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineFlow:
    """A message from one drawn rank to another."""

    name: str
    from_stage: int
    to_stage: int
    stream: str
    """The part of both ranks' streams after the slash."""
    start_s: Seconds
    """Within the span that makes the message."""
    end_s: Seconds
    """At the beginning of the span that takes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimeline:
    """One step, predicted unless its source says otherwise."""

    step_s: Seconds
    num_ranks: int
    num_stages: int
    ranks: tuple[TimelineRank, ...]
    flows: tuple[TimelineFlow, ...]
    notes: tuple[str, ...]
    components: tuple[TimeEntry, ...] = ()
    """The parts of the slowest rank's step, as ``predict`` prints them."""
    exposed: ExposedCommunication | None = None
    """What communication adds to the step."""
    source: TimelineSource = "simulated"

    @property
    def num_spans(self) -> int:
        """Of all ranks."""
        return sum(len(rank.spans) for rank in self.ranks)


def predict_timeline(plan: Plan) -> StepTimeline:
    """The step of representative ranks."""
    parts = step_parts(plan)
    passes = _passes(plan, parts)
    stages = _drawn_stages(plan, parts)
    painter = _Painter(plan, parts, num_stages=len(stages))
    ranks = tuple(
        TimelineRank(
            rank=stage * (plan.layout.world_size // plan.layout.pp),
            stage=stage,
            spans=tuple(
                sorted(
                    (
                        *painter.passes(stage, passes[stage]),
                        *painter.data_parallelism(stage, _start_s(passes[stage])),
                        *painter.end_of_step(stage),
                    ),
                    key=lambda span: (span.stream, span.start_s),
                )
            ),
            calls=tuple(_timeline_calls(parts, stage)),
        )
        for stage in stages
    )
    return StepTimeline(
        step_s=parts.step_s,
        num_ranks=plan.layout.world_size,
        num_stages=plan.layout.pp,
        ranks=ranks,
        flows=tuple(_flows(passes, stages)) if plan.layout.pp > 1 else (),
        notes=(NOTE, *painter.notes, *(() if any(passes) else (NO_ORDER_NOTE,))),
        components=time_components(parts),
        exposed=exposed_communication(plan),
    )


def _timeline_calls(parts: StepParts, stage: int) -> Iterator[TimelineCall]:
    """The collectives of a stage; of several with one name and axis, that with most calls."""
    most: dict[tuple[str, Axis], Collective] = {}
    for time in parts.times[stage].collectives:
        call = time.collective
        known = most.get((call.name, call.axis))
        if call.group_size > 1 and (known is None or call.count > known.count):
            most[call.name, call.axis] = call
    for call in most.values():
        chosen = parts.clock.call(call)
        yield TimelineCall(
            name=call.name,
            axis=call.axis,
            group_size=call.group_size,
            num_bytes=call.num_bytes,
            count=call.count,
            algorithm=chosen.algorithm,
            protocol=chosen.protocol,
            bottleneck=chosen.bottleneck,
            basis=chosen.basis,
        )


def _drawn_stages(plan: Plan, parts: StepParts) -> list[int]:
    last = plan.layout.pp - 1
    wanted = {0, 1, last // 2, last - 1, last, parts.critical}
    return sorted(stage for stage in wanted if 0 <= stage <= last)


def _start_s(spans: Sequence[Span]) -> Seconds:
    """Of the first pass."""
    return min((span.start_s for span in spans), default=0.0)


def _passes(plan: Plan, parts: StepParts) -> list[list[Span]]:
    """Passes and sends of every stage, in the schedule's time."""
    spans: list[list[Span]] = [[] for _ in parts.times]
    if plan.layout.pp == 1:
        spans[0] = list(_one_stage_passes(plan, parts))
        return spans
    shape = schedule_shape(plan)
    if shape is None:
        return spans
    gathers_s = [time.gathers_s for time in parts.times]
    times = pipeline_times(plan, chunks=parts.chunks, send_s=parts.send_s, gathers_s=gathers_s)
    for span in pipeline_spans(shape, times):
        spans[int(span.stream.partition("/")[0].removeprefix("stage "))].append(span)
    return spans


def _one_stage_passes(plan: Plan, parts: StepParts) -> Iterator[Span]:
    """Forward and backward of one micro-batch after the other, with the data parallelism that falls into each."""
    (time,) = parts.times
    (chunk,) = time.chunks
    last = plan.num_microbatches - 1
    now = 0.0
    for number in range(plan.num_microbatches):
        for name, own_s in (("forward", chunk.forward_s), ("backward", chunk.backward_s)):
            phase: OperationPhase = "forward" if name == "forward" else "backward"
            duration_s = own_s + sum(
                call.exposed_s / call.collective.rounds
                for call in time.collectives
                if is_data_parallel(call.collective, phase)
                and (call.collective.rounds > 1 or number == (0 if phase == "forward" else last))
            )
            yield Span(
                stream="stage 0/compute",
                name=name,
                category=phase,
                start_s=now,
                end_s=now + duration_s,
                micro_batch=number,
                chunk=0,
            )
            now += duration_s


def _flows(passes: Sequence[Sequence[Span]], stages: Sequence[int]) -> Iterator[TimelineFlow]:
    """Activations and gradients between drawn stages."""
    taken: dict[tuple[bool, int | None, int | None], tuple[int, Span]] = {}
    drawn = [(stage, span) for stage in stages for span in passes[stage] if span.stream.endswith("/compute")]
    for stage, span in drawn:
        if span.category in ("forward", "backward") and span.name != "weight_backward":
            taken[span.category == "forward", span.chunk, span.micro_batch] = (stage, span)
    for (is_forward, chunk, number), (stage, span) in taken.items():
        if chunk is None:
            continue
        found = taken.get((is_forward, chunk + 1 if is_forward else chunk - 1, number))
        if found is None or found[0] == stage:
            continue
        yield TimelineFlow(
            name=f"pipeline {'forward' if is_forward else 'backward'}",
            from_stage=stage,
            to_stage=found[0],
            stream="compute",
            start_s=span.end_s - min(INSIDE_S, span.duration_s / 2),
            end_s=max(span.end_s, found[1].start_s),
        )


class _Painter:
    """Fills the passes of a stage with their blocks and collectives."""

    def __init__(self, plan: Plan, parts: StepParts, *, num_stages: int) -> None:
        self._plan = plan
        self._parts = parts
        self._passes = StagePasses(plan, parts)
        self._most_spans = MOST_SPANS // num_stages
        self.notes: tuple[str, ...] = ()

    def passes(self, stage: int, spans: Sequence[Span]) -> Iterator[Span]:
        """Every pass of a stage block by block, or only the first and last micro-batch when they are too many."""
        computing = [span for span in spans if span.stream.endswith("/compute") and span.category != "send_recv"]
        num_inside = sum(self._passes.num_spans(stage, span) for span in computing)
        is_whole = num_inside <= self._most_spans
        if not is_whole:
            self.notes += ("block by block in the first and the last micro-batch only; the others are one span a pass",)
        last = self._plan.num_microbatches - 1
        for span in spans:
            if span.category == "send_recv":
                direction = "forward" if span.name == "send_forward" else "backward"
                yield replace(span, stream=f"stage {stage}/pp {direction}", name=f"pipeline {direction}")
            elif is_whole or span.micro_batch in (0, last):
                yield from self._passes.inside(stage, span)
            else:
                yield span

    def data_parallelism(self, stage: int, first_s: Seconds) -> Iterator[Span]:
        """Data parallelism beside a pipeline, one span per collective: its hidden part beside the passes."""
        if self._plan.layout.pp == 1:
            return
        self.notes += (PIPELINE_NOTE,) if PIPELINE_NOTE not in self.notes else ()
        time = self._parts.times[stage]
        gathers = [call for call in time.collectives if is_data_parallel(call.collective, "forward")]
        reductions = [call for call in time.collectives if is_data_parallel(call.collective, "backward")]
        now = 0.0 if gathers_at_step_begin(self._plan) else max(0.0, first_s - time.gathers_s)
        for call in gathers:
            yield _call_span(stage, call, now, call.total_s)
            now += call.total_s
        end_s = self._parts.waits.ends_s[stage]
        now = end_s - sum(max(0.0, call.total_s - call.exposed_s) for call in reductions)
        for call in reductions:
            yield _call_span(stage, call, max(0.0, now), max(call.total_s, call.exposed_s))
            now += max(call.total_s, call.exposed_s)

    def end_of_step(self, stage: int) -> Iterator[Span]:
        """What follows the last backward: the norm that all ranks wait for, then clipping, the update and the host."""
        time, offload, waits = self._parts.times[stage], self._parts.offloads[stage], self._parts.waits
        after = [call for call in time.collectives if call.collective.phase == "optimizer"]
        sums = [call for call in after if is_before_update(call.collective)]
        stream = f"stage {stage}/{COMPUTE}"
        if time.norm_s:
            reduced_s = waits.ends_s[stage] + time.reductions_s
            yield Span(
                stream=stream,
                name="gradient norm",
                category="optimizer",
                start_s=reduced_s,
                end_s=reduced_s + time.norm_s,
            )
        now = waits.updates_start_s[stage] - sum(call.exposed_s for call in sums)
        for call in sums:
            yield _call_span(stage, call, now, call.exposed_s)
            now += call.exposed_s
        update_s = time.compute.optimizer_s - time.norm_s
        if update_s:
            yield Span(stream=stream, name="optimizer", category="optimizer", start_s=now, end_s=now + update_s)
            now += update_s
        yield from _host_spans(stage, offload, now)
        now += offload.total_s
        for call in after:
            if not is_before_update(call.collective):
                yield _call_span(stage, call, now, call.exposed_s)
                now += call.exposed_s


def _call_span(stage: int, call: CollectiveTime, start_s: Seconds, duration_s: Seconds) -> Span:
    return Span(
        stream=f"stage {stage}/{call.collective.axis}",
        name=call.collective.name,
        category=call.collective.kind,
        start_s=start_s,
        end_s=start_s + duration_s,
    )


def _host_spans(stage: int, offload: OffloadTime, start_s: Seconds) -> Iterator[Span]:
    """Copies that nothing hides, then the update; the drives turn states over while the processors update."""
    updating_s = start_s + offload.copies_s
    for stream, name, from_s, duration_s in (
        ("host", "copies that nothing hides", start_s, offload.copies_s),
        ("drives", "optimizer states from and to the drives", updating_s, offload.drives_s),
        ("host", "update on the host", updating_s, offload.processors_s),
    ):
        if duration_s:
            yield Span(
                stream=f"stage {stage}/{stream}",
                name=name,
                category="offload",
                start_s=from_s,
                end_s=from_s + duration_s,
            )

"""The predicted step of a few ranks, span by span, for drawing.

The passes are those that were simulated for the step's time, placed by their schedule, and the slowest stage ends where
``predict_time`` says the step ends. What spans expose sums to the prediction's exposed communication, collective by
collective. One rank stands for all of its stage; the stages drawn are the first two, the middle one, the last two and
the slowest.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Literal

from shardwise.plan import Plan
from shardwise.predict.offload_time import OffloadTime
from shardwise.predict.pipeline_time import gathers_at_step_begin, pipeline_times, schedule_shape
from shardwise.predict.stage_time import CollectiveTime, StageTime, is_before_update, is_data_parallel
from shardwise.predict.step_parts import StepParts, is_send, step_parts
from shardwise.predict.tasks import COMPUTE
from shardwise.predict.time import stage_components, time_components
from shardwise.predict.timeline_split import is_computing
from shardwise.predict.timeline_stage import StageDrawing
from shardwise.prediction import TimeEntry
from shardwise.simulate.pipeline import pipeline_spans
from shardwise.simulate.spans import Span
from shardwise.step.inventory import Axis, Collective
from shardwise.units import Bytes, Seconds

TimelineSource = Literal["simulated", "measured"]
MOST_SPANS = 100_000
"""Spans of all ranks. A rank with more than its share draws only its first and last micro-batch block by block."""
INSIDE_S = 1e-6
"""An arrow begins this long before the end of the span that sends it, so that it belongs to it."""
PIPELINE_NOTE = "data parallelism of a pipeline is one span per collective, its hidden part beside the passes"
SUMMARY_NOTE = (
    "passes are drawn block by block in the first and the last micro-batch; in the others one span stands for each "
    "kind of computation and two for each collective, what is hidden and what is waited for, with the same sums"
)
NO_ORDER_NOTE = "no order of passes can be written for these micro-batches, so only the end of the step is drawn"
NOTE = "simulated by shardwise predict from the plan alone; nothing of it was measured"


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineCall:
    """One collective of a rank, which the spans with its name and axis stand for."""

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
    """Number of the rank in the whole job."""
    stage: int
    spans: tuple[Span, ...]
    """Tasks of the rank, on streams such as ``stage 0/compute``."""
    calls: tuple[TimelineCall, ...] = ()
    """The collectives that its spans of communication are named after."""
    components: tuple[TimeEntry, ...] = ()
    """The parts of its step; they sum to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineFlow:
    """A message from one drawn rank to another."""

    name: str
    from_stage: int
    to_stage: int
    stream: str
    """The part of both ranks' streams after the slash."""
    start_s: Seconds
    """A time within the span that makes the message."""
    end_s: Seconds
    """Beginning of the span that takes the message."""


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
    source: TimelineSource = "simulated"

    @property
    def num_spans(self) -> int:
        """Spans of all drawn ranks."""
        return sum(len(rank.spans) for rank in self.ranks)


def predict_timeline(plan: Plan) -> StepTimeline:
    """The step of representative ranks."""
    parts = step_parts(plan)
    stages = _drawn_stages(plan, parts)
    scheduled = _scheduled(plan, parts, stages)
    drawings = [
        StageDrawing(plan, parts.clock, parts.stages[stage], _own_time(parts, stage), _passes(scheduled[stage]))
        for stage in stages
    ]
    most_spans = MOST_SPANS // len(stages)
    are_whole = [drawing.num_spans <= most_spans for drawing in drawings]
    ranks = tuple(
        TimelineRank(
            rank=stage * (plan.layout.world_size // plan.layout.pp),
            stage=stage,
            spans=_in_order(
                drawing.spans(is_whole=is_whole),
                _messages(parts, stage, scheduled[stage]),
                _data_parallelism(plan, parts, stage, drawing),
                _end_of_step(parts, stage),
            ),
            calls=tuple(_timeline_calls(parts, stage)),
            components=stage_components(parts, stage),
        )
        for stage, drawing, is_whole in zip(stages, drawings, are_whole, strict=True)
    )
    return StepTimeline(
        step_s=parts.step_s,
        num_ranks=plan.layout.world_size,
        num_stages=plan.layout.pp,
        ranks=ranks,
        flows=tuple(_flows(ranks)),
        notes=tuple(_notes(plan, is_whole=all(are_whole), has_order=any(drawing.passes for drawing in drawings))),
        components=time_components(parts),
    )


def _in_order(*spans: Iterable[Span]) -> tuple[Span, ...]:
    """Spans that take time, stream by stream."""
    found = (span for span in chain(*spans) if span.duration_s > 0)
    return tuple(sorted(found, key=lambda span: (span.stream, span.start_s)))


def _notes(plan: Plan, *, is_whole: bool, has_order: bool) -> Iterator[str]:
    yield NOTE
    if not is_whole:
        yield SUMMARY_NOTE
    if plan.layout.pp > 1:
        yield PIPELINE_NOTE
    if not has_order:
        yield NO_ORDER_NOTE


def _own_time(parts: StepParts, stage: int) -> StageTime:
    return parts.slowest if stage == parts.critical else parts.times[stage]


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


def _scheduled(plan: Plan, parts: StepParts, stages: Sequence[int]) -> dict[int, list[Span]]:
    """Passes and messages of some stages, in the schedule's time; none without a pipeline or without an order."""
    spans: dict[int, list[Span]] = {stage: [] for stage in stages}
    shape = schedule_shape(plan)
    if plan.layout.pp == 1 or shape is None:
        return spans
    gathers_s = [time.gathers_s for time in parts.times]
    times = pipeline_times(plan, chunks=parts.chunks, send_s=parts.send_s, gathers_s=gathers_s)
    for span in pipeline_spans(shape, times, ranks=stages):
        spans[int(span.stream.partition("/")[0].removeprefix("stage "))].append(span)
    return spans


def _passes(scheduled: Sequence[Span]) -> list[Span]:
    return [span for span in scheduled if span.category != "send_recv"]


def _flows(ranks: Sequence[TimelineRank]) -> Iterator[TimelineFlow]:
    """Activations and gradients between drawn stages, from the last kernel of a pass to the first of the next."""
    passes: dict[tuple[bool, int, int], tuple[int, Span, Span]] = {}
    for rank in ranks:
        for span in rank.spans:
            if span.chunk is None or span.micro_batch is None or span.name == "weight_backward":
                continue
            if is_computing(span):
                key = (span.category == "forward", span.chunk, span.micro_batch)
                first = passes[key][1] if key in passes else span
                passes[key] = (rank.stage, first, span)
    for (is_forward, chunk, number), (stage, _, last) in passes.items():
        found = passes.get((is_forward, chunk + 1 if is_forward else chunk - 1, number))
        if found is None or found[0] == stage:
            continue
        yield TimelineFlow(
            name=f"pipeline {'forward' if is_forward else 'backward'}",
            from_stage=stage,
            to_stage=found[0],
            stream=COMPUTE,
            start_s=last.end_s - min(INSIDE_S, last.duration_s / 2),
            end_s=max(last.end_s, found[1].start_s),
        )


def _messages(parts: StepParts, stage: int, scheduled: Sequence[Span]) -> Iterator[Span]:
    """Messages beside computation; what they expose is divided among them by their time."""
    sends = [span for span in scheduled if span.category == "send_recv"]
    total_s = sum(span.duration_s for span in sends)
    exposed_s = sum(time.exposed_s for time in _own_time(parts, stage).collectives if is_send(time))
    for span in sends:
        direction = "forward" if span.name == "send_forward" else "backward"
        yield replace(
            span,
            stream=f"stage {stage}/pp {direction}",
            name=f"pipeline {direction}",
            exposed_s=exposed_s * span.duration_s / total_s if total_s else 0.0,
        )


def _data_parallelism(plan: Plan, parts: StepParts, stage: int, drawing: StageDrawing) -> Iterator[Span]:
    """Data parallelism beside a pipeline, one span per collective: its hidden part beside the passes."""
    if plan.layout.pp == 1:
        return
    time = _own_time(parts, stage)
    gathers = [call for call in time.collectives if is_data_parallel(call.collective, "forward")]
    reductions = [call for call in time.collectives if is_data_parallel(call.collective, "backward")]
    first_s = min((one.start_s for one in drawing.passes), default=0.0)
    now = 0.0 if gathers_at_step_begin(plan) else max(0.0, first_s - parts.times[stage].gathers_s)
    for call in gathers:
        yield _call_span(stage, call, now, call.total_s)
        now += call.total_s
    end_s = parts.waits.ends_s[stage] + parts.times[stage].reductions_s
    now = max(0.0, end_s - sum(call.total_s for call in reductions))
    for call in reductions:
        yield _call_span(stage, call, now, call.total_s)
        now += call.total_s


def _end_of_step(parts: StepParts, stage: int) -> Iterator[Span]:
    """Spans after the last backward: the norm that all ranks wait for, then clipping, the update and the host."""
    time, offload, waits = parts.times[stage], parts.offloads[stage], parts.waits
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
        exposed_s=call.exposed_s,
    )


def _host_spans(stage: int, offload: OffloadTime, start_s: Seconds) -> Iterator[Span]:
    """Exposed copies, then the update; the drives read and write states while the CPUs update."""
    updating_s = start_s + offload.copies_s
    for stream, name, from_s, duration_s in (
        ("host", "copies that nothing hides", start_s, offload.copies_s),
        ("drives", "optimizer states from and to the drives", updating_s, offload.drives_s),
        ("host", "update on the host", updating_s, offload.cpu_update_s),
    ):
        if duration_s:
            yield Span(
                stream=f"stage {stage}/{stream}",
                name=name,
                category="offload",
                start_s=from_s,
                end_s=from_s + duration_s,
            )

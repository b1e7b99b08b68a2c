"""A predicted step in the trace-event format that Perfetto and Chrome's tracing page open.

One process per drawn rank, one thread per stream, complete events for spans and flow events for messages between ranks;
times are microseconds from the beginning of the step (Google, Trace Event Format, "Complete Events", "Flow Events").
Spans of communication say what they carry and how: bytes of one call, group, algorithm, protocol and bottleneck.
"""

from collections.abc import Iterator

from shardwise.plan import Plan
from shardwise.predict.timeline import StepTimeline, TimelineCall, TimelineRank
from shardwise.render.names import cluster_text, layout_text, model_text
from shardwise.render.timeline_lanes import Lane, lane_calls, rank_title, timeline_lanes
from shardwise.simulate.spans import Span
from shardwise.units import microseconds

TRACE_SCHEMA = "shardwise.timeline/1"


def trace_object(*, plan: Plan, timeline: StepTimeline) -> dict[str, object]:
    """The whole trace."""
    lanes = timeline_lanes(timeline)
    threads: dict[tuple[int, str], int] = {}
    for lane in lanes:
        own = sum(stage == lane.rank.stage for stage, _ in threads)
        threads[lane.rank.stage, lane.stream] = own + 1
    events: list[object] = [event for rank in timeline.ranks for event in _process_events(rank)]
    for lane in lanes:
        thread = threads[lane.rank.stage, lane.stream]
        events += _thread_events(lane, thread)
        calls = lane_calls(lane)
        events += [_span_event(span, lane.rank.rank, thread, calls.get(span.name)) for span in lane.spans]
    events += _flow_events(timeline, threads)
    return {
        "schema": TRACE_SCHEMA,
        "displayTimeUnit": "ms",
        "otherData": {
            "is_simulated": True,
            "model": model_text(plan.model),
            "cluster": cluster_text(plan.cluster),
            "gpu": plan.cluster.gpu.name,
            "layout": layout_text(plan.layout),
            "step_s": timeline.step_s,
            "components_s": {entry.component: entry.duration_s for entry in timeline.components},
            "num_ranks": timeline.num_ranks,
            "num_stages": timeline.num_stages,
            "drawn_stages": [rank.stage for rank in timeline.ranks],
            "notes": list(timeline.notes),
        },
        "traceEvents": events,
    }


def _process_events(rank: TimelineRank) -> Iterator[dict[str, object]]:
    yield {"ph": "M", "pid": rank.rank, "name": "process_name", "args": {"name": rank_title(rank)}}
    yield {"ph": "M", "pid": rank.rank, "name": "process_sort_index", "args": {"sort_index": rank.stage}}


def _thread_events(lane: Lane, thread: int) -> Iterator[dict[str, object]]:
    pid = lane.rank.rank
    yield {"ph": "M", "pid": pid, "tid": thread, "name": "thread_name", "args": {"name": lane.stream}}
    yield {"ph": "M", "pid": pid, "tid": thread, "name": "thread_sort_index", "args": {"sort_index": thread}}


def _span_event(span: Span, pid: int, thread: int, call: TimelineCall | None) -> dict[str, object]:
    """The end is rounded, not the duration, so that spans that touch still touch."""
    start_us = microseconds(span.start_s)
    event: dict[str, object] = {
        "ph": "X",
        "pid": pid,
        "tid": thread,
        "name": span.name,
        "cat": span.category,
        "ts": start_us,
        "dur": round(microseconds(span.end_s) - start_us, 3),
    }
    arguments = {
        key: value for key, value in (("micro_batch", span.micro_batch), ("chunk", span.chunk)) if value is not None
    }
    carried = {} if call is None else _carried(call)
    exposed = {"exposed_us": microseconds(span.exposed_s)} if span.exposed_s else {}
    if arguments or carried or exposed:
        event["args"] = arguments | carried | exposed
    return event


def _carried(call: TimelineCall) -> dict[str, object]:
    """What a collective carries and how, in the words of ``predict --json``."""
    return {
        "axis": call.axis,
        "group_size": call.group_size,
        "bytes": call.num_bytes,
        "algorithm": call.algorithm,
        "protocol": call.protocol,
        "bottleneck": call.bottleneck,
        "basis": call.basis,
    }


def _flow_events(timeline: StepTimeline, threads: dict[tuple[int, str], int]) -> Iterator[dict[str, object]]:
    """An arrow begins inside the span that sends, and binds to the span that encloses its end."""
    rank_of = {rank.stage: rank.rank for rank in timeline.ranks}
    for number, flow in enumerate(timeline.flows, start=1):
        both: tuple[tuple[str, int, float], ...] = (
            ("s", flow.from_stage, flow.start_s),
            ("f", flow.to_stage, flow.end_s),
        )
        for phase, stage, moment_s in both:
            event: dict[str, object] = {
                "ph": phase,
                "id": number,
                "pid": rank_of[stage],
                "tid": threads[stage, flow.stream],
                "name": flow.name,
                "cat": "send_recv",
                "ts": microseconds(moment_s),
            }
            if phase == "f":
                event["bp"] = "e"
            yield event

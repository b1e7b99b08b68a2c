"""A pipeline schedule with real durations: how long a step takes, where ranks wait, and what ran when."""

from collections.abc import Collection
from dataclasses import dataclass

from shardwise.schedules.make import settled
from shardwise.schedules.shape import ScheduleShape
from shardwise.simulate.pipeline_graph import NodeKind, PipelineGraph
from shardwise.simulate.pipeline_times import PipelineTimes, TimedGraph, time_pipeline
from shardwise.simulate.spans import Span, SpanCategory
from shardwise.simulate.steady_state import extrapolate
from shardwise.units import Seconds

CATEGORY_OF: dict[NodeKind, SpanCategory] = {
    "forward": "forward",
    "backward": "backward",
    "input_backward": "backward",
    "weight_backward": "backward",
    "joined": "backward",
    "gate": "other",
    "send_forward": "send_recv",
    "send_backward": "send_recv",
}
STREAM_NAMES = ("compute", "send_forward", "send_backward")


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTime:
    """How one rank spends the time of a step."""

    rank: int
    busy_s: Seconds
    """Seconds of computing."""
    first_start_s: Seconds
    last_end_s: Seconds
    """When the last work on its compute stream ends, a blocking send included."""

    @property
    def waiting_s(self) -> Seconds:
        """Seconds it waits between its first start and its last end: for inputs, and for its own sends if they
        block."""
        return self.last_end_s - self.first_start_s - self.busy_s


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineRun:
    """One step of a pipeline, from the first forward to the last backward of the slowest rank."""

    shape: ScheduleShape
    makespan_s: Seconds
    ranks: tuple[RankTime, ...]
    is_extrapolated: bool = False
    """Whether fewer micro-batches were run and the steady part between was multiplied; the result is the same."""

    def idle_s(self, rank: int) -> Seconds:
        """Time of the step in which a rank does not compute."""
        return self.makespan_s - self.ranks[rank].busy_s


def bubble_over_ideal(run: PipelineRun) -> float:
    """Idle time of all ranks over their busy time: how much longer the step is than without a bubble.

    For equal stages this is ``(p - 1) / (v m)`` of 1F1B, GPipe and interleaving. It is not the idle share; that is
    :func:`idle_fraction`.
    """
    busy_s = sum(rank.busy_s for rank in run.ranks)
    return (len(run.ranks) * run.makespan_s - busy_s) / busy_s if busy_s else 0.0


def idle_fraction(run: PipelineRun) -> float:
    """Idle share of the step, over all ranks: ``(p - 1) / (v m + p - 1)`` for equal stages of 1F1B and the like."""
    busy_s = sum(rank.busy_s for rank in run.ranks)
    return 1 - busy_s / (len(run.ranks) * run.makespan_s) if run.makespan_s else 0.0


def run_pipeline(asked: ScheduleShape, times: PipelineTimes, *, may_extrapolate: bool = True) -> PipelineRun:
    """One step of a pipeline.

    Many micro-batches are not all run when ``may_extrapolate``: the step is long because a steady part repeats, and
    :mod:`shardwise.simulate.steady_state` multiplies it without changing the result.

    Raises:
        LayoutError: no order can be written for the shape.
        SimulationError: there are not as many times as chunks or boundaries.

    >>> from shardwise.simulate.pipeline_times import ChunkTimes, even_chunks
    >>> chunk = ChunkTimes(forward_s=1.0, input_backward_s=1.0, weight_backward_s=1.0)
    >>> times = PipelineTimes(chunks=even_chunks(num_chunks=4, chunk=chunk))
    >>> run_pipeline(ScheduleShape(name="1f1b", pp=4, num_microbatches=16), times).makespan_s
    57.0
    """
    shape = settled(asked)
    found = extrapolate(shape, times) if may_extrapolate else None
    if found is not None:
        return _pipeline_run(shape, found.timed, added_s=found.added_s, added_busy_s=found.added_busy_s)
    return _pipeline_run(shape, time_pipeline(shape, times))


def _pipeline_run(
    shape: ScheduleShape, timed: TimedGraph, *, added_s: Seconds = 0.0, added_busy_s: tuple[Seconds, ...] = ()
) -> PipelineRun:
    """Times of every rank from a timed graph, with the steady part that was left out of the graph."""
    ranks = []
    for rank in range(shape.pp):
        nodes = timed.graph.streams[rank]
        ranks.append(
            RankTime(
                rank=rank,
                busy_s=timed.busy_s(timed.graph.compute_counts[rank]) + (added_busy_s[rank] if added_busy_s else 0.0),
                first_start_s=timed.start_s(nodes[0]),
                last_end_s=timed.ends_s[nodes[-1]] + added_s,
            )
        )
    return PipelineRun(
        shape=shape,
        makespan_s=max(rank.last_end_s for rank in ranks),
        ranks=tuple(ranks),
        is_extrapolated=bool(added_busy_s),
    )


def pipeline_spans(
    asked: ScheduleShape, times: PipelineTimes, *, ranks: Collection[int] | None = None
) -> tuple[Span, ...]:
    """Every pass and every send of some ranks, or of all, in a step; rank r's are on ``stage r/compute`` and the like.

    A joined forward and backward is drawn as both, one after the other, in proportion to what they take alone.
    """
    timed = time_pipeline(settled(asked), times)
    return tuple(
        span
        for stream, nodes in enumerate(timed.graph.streams)
        if ranks is None or stream % timed.graph.schedule.shape.pp in ranks
        for node in nodes
        for span in _spans_of(timed, times, node, _stream_name(timed.graph, stream))
    )


def _stream_name(graph: PipelineGraph, stream: int) -> str:
    lane, rank = divmod(stream, graph.schedule.shape.pp)
    return f"stage {rank}/{STREAM_NAMES[lane]}"


def _spans_of(timed: TimedGraph, times: PipelineTimes, node: int, stream: str) -> tuple[Span, ...]:
    kind, chunk = timed.graph.kind(node), timed.graph.chunk(node)
    number, start_s, end_s = timed.graph.micro_batch[node - 1], timed.start_s(node), timed.ends_s[node]
    if kind == "gate":
        return ()
    if kind != "joined":
        return (_span(stream, kind, chunk, number, (start_s, end_s)),)
    partner, back = timed.graph.partner[node]
    forward_s, backward_s = times.chunks[chunk].forward_s, times.chunks[partner].backward_s
    alone_s = forward_s + backward_s
    middle_s = start_s + (end_s - start_s) * (forward_s / alone_s if alone_s else 0.0)
    return (
        _span(stream, "forward", chunk, number, (start_s, middle_s)),
        _span(stream, "backward", partner, back, (middle_s, end_s)),
    )


def _span(stream: str, kind: NodeKind, chunk: int, number: int, from_to_s: tuple[Seconds, Seconds]) -> Span:
    return Span(
        stream=stream,
        name=kind,
        category=CATEGORY_OF[kind],
        start_s=from_to_s[0],
        end_s=from_to_s[1],
        micro_batch=number,
        chunk=chunk,
    )

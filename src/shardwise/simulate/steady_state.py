"""The steady part of a long pipeline step, run a few times and multiplied.

Once its ranks are filled, a pipeline repeats: round after round every rank runs the same passes for later
micro-batches. When all nodes of a stretch end exactly the same time after those of the stretch before, and what comes
later depends on nothing before that stretch, every further round shifts by that time again, and so does the drain. The
step of many micro-batches is then the step of few plus the shift of the rounds between (the eventual periodicity of
max-plus linear systems; Baccelli et al. 1992, Synchronization and Linearity, section 3.7).

The shift is looked for, never assumed: where none is found the whole step is run.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil

from shardwise.schedules.make import repeats_after
from shardwise.schedules.shape import ScheduleShape
from shardwise.schedules.table import SCHEDULE_KINDS
from shardwise.simulate.pipeline_graph import GraphStyle, PipelineGraph, WorkCounts, count_work, pipeline_graph
from shardwise.simulate.pipeline_times import PipelineTimes, TimedGraph, time_pipeline
from shardwise.units import Seconds

RELATIVE_ROUNDING = 1e-11
"""Two times are the same when they differ by no more than this share of the step: sums of thousands of terms in
double precision differ by less than 1e-12."""
FIRST_ROUNDS = 2
"""Steady rounds of the first attempt; each further one has twice as many."""
LARGEST_SHARE = 0.5
"""Attempts that would run more than this share of all micro-batches are not made."""


@dataclass(frozen=True, slots=True, eq=False)
class Extrapolation:
    """A step of fewer micro-batches, and what the missing ones add."""

    timed: TimedGraph
    added_s: Seconds
    added_busy_s: tuple[Seconds, ...]
    """Seconds added to each rank's computing."""


@dataclass(frozen=True, slots=True, eq=False)
class _SteadyStream:
    """Where a stream repeats itself: ``nodes[i + length]`` is ``nodes[i]`` one period of micro-batches later."""

    nodes: tuple[int, ...]
    begin: int
    end: int
    length: int


@dataclass(frozen=True, slots=True, eq=False)
class _SteadyGraph:
    streams: tuple[_SteadyStream, ...]
    num_rounds_back: float
    """How far back, in rounds, anything in or after the last steady round looks."""
    round_counts: tuple[WorkCounts, ...]
    """Computations of one round on each rank."""


_NOT_STEADY = _SteadyGraph((), 0.0, ())


def extrapolate(shape: ScheduleShape, times: PipelineTimes) -> Extrapolation | None:
    """The step of a shape from one with fewer micro-batches; ``None`` when there is no such shortcut.

    Source: eventual periodicity of max-plus linear systems, see above.
    Assumes: a settled shape.
    """
    period = repeats_after(shape)
    rounds = FIRST_ROUNDS
    while period:
        few = _fewer(shape, period=period, rounds=rounds)
        if few.num_microbatches > LARGEST_SHARE * shape.num_microbatches:
            return None
        steady = _steady_graph(few, times.style)
        timed = time_pipeline(few, times)
        cycle = _cycle(steady, timed)
        num_left = (shape.num_microbatches - few.num_microbatches) // period
        if cycle is not None and num_left % cycle.num_rounds == 0:
            return _multiplied(steady, timed, cycle, num_times=num_left // cycle.num_rounds)
        rounds = 2 * rounds if cycle is None else rounds + num_left % cycle.num_rounds
    return None


def _fewer(shape: ScheduleShape, *, period: int, rounds: int) -> ScheduleShape:
    """A shape with enough micro-batches to fill the ranks and drain them, and some steady rounds between.

    Two rounds fill an interleaved pipeline. What remains of m after whole rounds is kept, so that the drain is that of
    m.
    """
    filling = 2 if period > 1 else SCHEDULE_KINDS[shape.name].steady_microbatches_per_rank * shape.pp
    return replace(shape, num_microbatches=(filling + rounds) * period + shape.num_microbatches % period)


@lru_cache(maxsize=64)
def _steady_graph(shape: ScheduleShape, style: GraphStyle, /) -> _SteadyGraph:
    """Where the streams of a graph repeat, cut behind the same micro-batch on all ranks; none when one never does."""
    graph = pipeline_graph(shape, style)
    period = repeats_after(shape)
    found = [_steady_stream(graph, nodes, period) for nodes in graph.streams if nodes]
    repeating = [stream for stream in found if stream is not None]
    if len(repeating) < len(found):
        return _NOT_STEADY
    cuts = _common_cuts(graph, repeating[: shape.pp], period)
    if cuts is None:
        return _NOT_STEADY
    streams = tuple(_cut(graph, stream, cuts) for stream in repeating)
    computing = streams[: shape.pp]
    rounds = [[graph.work[node - 1] for node in one.nodes[one.end - one.length : one.end]] for one in computing]
    return _SteadyGraph(
        streams=streams,
        num_rounds_back=_num_rounds_back(graph, streams),
        round_counts=tuple(count_work(works, graph.first_work("gate")) for works in rounds),
    )


def _steady_stream(graph: PipelineGraph, nodes: tuple[int, ...], period: int) -> _SteadyStream | None:
    """The longest stretch around the middle of a stream that repeats after a period of micro-batches."""
    num_labels = graph.schedule.shape.num_microbatches + period
    labels = [graph.work[node - 1] * num_labels + graph.micro_batch[node - 1] for node in nodes]
    middle = len(nodes) // 2
    try:
        length = labels.index(labels[middle] + period, middle) - middle
    except ValueError:
        return None
    begin = end = middle
    while begin > 0 and labels[begin - 1 + length] == labels[begin - 1] + period:
        begin -= 1
    while end + length < len(labels) and labels[end + length] == labels[end] + period:
        end += 1
    return _SteadyStream(nodes, begin, end + length, length)


def _common_cuts(graph: PipelineGraph, computing: Sequence[_SteadyStream], period: int) -> tuple[int, ...] | None:
    """The last node of every rank's compute before the cut, which follows the same round of backwards on all ranks."""
    last_backwards = [_last_backwards(graph, stream, period) for stream in computing]
    common = set(last_backwards[0]).intersection(*last_backwards[1:])
    return tuple(nodes[max(common)] for nodes in last_backwards) if common else None


def _last_backwards(graph: PipelineGraph, stream: _SteadyStream, period: int) -> dict[int, int]:
    """For each round, the node that ends its backwards on a rank's first chunk, within the steady part."""
    backwards = [(graph.backward_of(node), node) for node in stream.nodes[stream.begin : stream.end]]
    first_chunk = min((back[0] for back, _ in backwards if back is not None), default=0)
    return {
        back[1] // period: node
        for back, node in backwards
        if back is not None and back[0] == first_chunk and back[1] % period == period - 1
    }


def _cut(graph: PipelineGraph, stream: _SteadyStream, cuts: Sequence[int]) -> _SteadyStream:
    """A stream whose steady part ends with the cut of its rank; that of sends ends with what was made before the cut.

    Nodes are numbered in the order in which a rank makes them, so numbers can be compared.
    """
    cut = cuts[graph.rank(stream.nodes[0])]
    is_sending = graph.kind(stream.nodes[0]).startswith("send")

    def made_by(node: int) -> int:
        return graph.second[node - 1] if is_sending else node

    return replace(stream, end=min(stream.end, bisect_right(stream.nodes, cut, key=made_by)))


def _num_rounds_back(graph: PipelineGraph, streams: Sequence[_SteadyStream]) -> float:
    """The furthest that a node of the last steady round or of the drain looks back, in rounds before that round."""
    before_end = [0.0] * (graph.num_nodes + 1)
    for stream in streams:
        for position, node in enumerate(stream.nodes):
            before_end[node] = (stream.end - position) / stream.length
    furthest = max(1 / stream.length for stream in streams)
    for node, input_node in enumerate(graph.second, start=1):
        if before_end[node] <= 1.0 and input_node:
            own = before_end[node]
            furthest = max(furthest, before_end[input_node] - (own if own > 0.0 else 0.0))
    return furthest


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cycle:
    num_rounds: int
    """Rounds after which all streams have shifted by the same time."""
    shift_s: Seconds


def _cycle(steady: _SteadyGraph, timed: TimedGraph) -> _Cycle | None:
    """The fewest rounds after which the end of the steady part is the stretch before it, shifted."""
    if not steady.streams:
        return None
    tolerance_s = RELATIVE_ROUNDING * max(timed.ends_s)
    num_rounds = 1
    while all(_first_compared(stream, steady, num_rounds) >= stream.begin for stream in steady.streams):
        shift_s = _common_shift_s(steady, timed.ends_s, num_rounds=num_rounds, tolerance_s=tolerance_s)
        if shift_s is not None:
            return _Cycle(num_rounds=num_rounds, shift_s=shift_s)
        num_rounds += 1
    return None


def _first_compared(stream: _SteadyStream, steady: _SteadyGraph, num_rounds: int) -> int:
    """Where the earlier of the two stretches begins."""
    return stream.end - ceil(steady.num_rounds_back * stream.length) - num_rounds * stream.length


def _common_shift_s(
    steady: _SteadyGraph, ends_s: Sequence[Seconds], *, num_rounds: int, tolerance_s: Seconds
) -> Seconds | None:
    """Seconds by which the later stretch ends later, if they are the same for all its nodes."""
    stream = steady.streams[0]
    last = stream.end - 1
    shift_s = ends_s[stream.nodes[last]] - ends_s[stream.nodes[last - num_rounds * stream.length]]
    for stream in steady.streams:
        nodes, distance = stream.nodes, num_rounds * stream.length
        for position in range(_first_compared(stream, steady, num_rounds), stream.end - distance):
            if abs(ends_s[nodes[position + distance]] - ends_s[nodes[position]] - shift_s) > tolerance_s:
                return None
    return shift_s


def _multiplied(steady: _SteadyGraph, timed: TimedGraph, cycle: _Cycle, *, num_times: int) -> Extrapolation:
    """Add the rounds that were left out."""
    return Extrapolation(
        timed=timed,
        added_s=num_times * cycle.shift_s,
        added_busy_s=tuple(num_times * cycle.num_rounds * timed.busy_s(counts) for counts in steady.round_counts),
    )

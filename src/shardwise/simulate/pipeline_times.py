"""How long each chunk of a pipeline takes, and the durations of its graph's nodes."""

from collections.abc import Sequence
from dataclasses import dataclass

from shardwise.errors import SimulationError
from shardwise.schedules.shape import PipelineSchedule, ScheduleShape
from shardwise.simulate.pipeline_graph import (
    NODE_KINDS,
    FirstPass,
    GraphStyle,
    NodeKind,
    PipelineGraph,
    Sends,
    WorkCounts,
    end_times_s,
    pipeline_graph,
)
from shardwise.units import Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkTimes:
    """Seconds of one micro-batch in one chunk."""

    forward_s: Seconds = 0.0
    input_backward_s: Seconds = 0.0
    """Seconds of recomputation and of the input gradient."""
    weight_backward_s: Seconds = 0.0

    @property
    def backward_s(self) -> Seconds:
        """Seconds of both halves of backward."""
        return self.input_backward_s + self.weight_backward_s

    @property
    def total_s(self) -> Seconds:
        """Seconds of forward and backward."""
        return self.forward_s + self.input_backward_s + self.weight_backward_s


NO_TIME = ChunkTimes()


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineTimes:
    """Everything that is needed to time a schedule."""

    chunks: tuple[ChunkTimes, ...]
    """Times of all chunks of all ranks, in model order."""
    sends_s: tuple[Seconds, ...] = ()
    """Seconds of a send across each boundary between two chunks, one direction; empty when sends take no time."""
    is_send_blocking: bool = False
    """Whether a rank computes nothing while it sends, as without overlapped point-to-point communication."""
    first_passes: tuple[FirstPass, ...] = ()
    """Waits of the first forward of each chunk for gathered parameters; empty when it waits for its input alone."""
    joined_ratio: float | None = None
    """Time of a pair of DualPipe, run as one block, over the sum of its forward and its backward; below 1 when they
    hide each other's communication. ``None`` when nothing is overlapped and the two run in turn, as in torch."""

    @property
    def style(self) -> GraphStyle:
        """How the graph models sends between ranks and DualPipe's pairs of passes."""
        sends: Sends = "free" if not any(self.sends_s) else "blocking" if self.is_send_blocking else "overlapped"
        return GraphStyle(sends=sends, are_pairs_joined=self.joined_ratio is not None)


def even_chunks(
    *, num_chunks: int, chunk: ChunkTimes, embedding: ChunkTimes = NO_TIME, head: ChunkTimes = NO_TIME
) -> tuple[ChunkTimes, ...]:
    """Equal chunks, the first with the embedding and the last with the head on top.

    >>> [times.forward_s for times in even_chunks(
    ...     num_chunks=3, chunk=ChunkTimes(forward_s=1.0), head=ChunkTimes(forward_s=0.25)
    ... )]
    [1.0, 1.0, 1.25]
    """
    chunks = [chunk] * num_chunks
    chunks[0] = _sum(chunks[0], embedding)
    chunks[-1] = _sum(chunks[-1], head)
    return tuple(chunks)


def _sum(one: ChunkTimes, other: ChunkTimes) -> ChunkTimes:
    return ChunkTimes(
        forward_s=one.forward_s + other.forward_s,
        input_backward_s=one.input_backward_s + other.input_backward_s,
        weight_backward_s=one.weight_backward_s + other.weight_backward_s,
    )


def node_durations_s(times: PipelineTimes, schedule: PipelineSchedule) -> list[Seconds]:
    """Durations by kind of work, as ``PipelineGraph.work`` numbers it.

    Raises:
        SimulationError: there are not as many times as chunks or boundaries.
    """
    chunks, sends = times.chunks, times.sends_s
    num_chunks = schedule.num_chunks
    if len(chunks) != num_chunks or (sends and len(sends) != num_chunks - 1):
        raise SimulationError(
            f"{len(chunks)} chunk times and {len(sends)} send times were given for {num_chunks} chunks",
            code="schedule-times",
            fix=f"give {num_chunks} chunk times and {num_chunks - 1} send times, or no send times",
        )
    table: dict[NodeKind, list[Seconds]] = {
        "forward": [chunk.forward_s for chunk in chunks],
        "backward": [chunk.backward_s for chunk in chunks],
        "input_backward": [chunk.input_backward_s for chunk in chunks],
        "weight_backward": [chunk.weight_backward_s for chunk in chunks],
        "joined": _joined_s(chunks, 1.0 if times.joined_ratio is None else times.joined_ratio),
        "gate": [0.0] * num_chunks,
        "send_forward": [*(sends or [0.0] * (num_chunks - 1)), 0.0],
        "send_backward": [0.0, *(sends or [0.0] * (num_chunks - 1))],
    }
    return [duration for kind in NODE_KINDS for duration in table[kind]]


def _joined_s(chunks: Sequence[ChunkTimes], ratio: float) -> list[Seconds]:
    """Seconds of joined blocks, each of which runs one chunk of a V forward and the rank's other chunk backward."""
    return [ratio * (chunk.forward_s + other.backward_s) for chunk, other in zip(chunks, reversed(chunks), strict=True)]


@dataclass(frozen=True, slots=True, eq=False)
class TimedGraph:
    """A graph and when each of its nodes ends."""

    graph: PipelineGraph
    durations_s: list[Seconds]
    """Duration of each kind of work, by its number."""
    ends_s: list[Seconds]
    """When each node ends; the entry at 0 is the beginning of the step."""

    def start_s(self, node: int) -> Seconds:
        """When a node starts."""
        return self.ends_s[node] - self.durations_s[self.graph.work[node - 1]]

    def busy_s(self, counts: WorkCounts) -> Seconds:
        """Seconds of computations that are done so often."""
        return sum(self.durations_s[work] * count for work, count in counts)


def time_pipeline(shape: ScheduleShape, times: PipelineTimes) -> TimedGraph:
    """The graph of a shape with these times."""
    graph = pipeline_graph(shape, times.style)
    durations = node_durations_s(times, graph.schedule)
    return TimedGraph(graph, durations, end_times_s(graph, durations, times.first_passes))

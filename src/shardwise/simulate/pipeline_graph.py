"""The passes and sends of a pipeline as a graph in an order that can be timed in one sweep.

Every node waits for at most two others: the one before it on its stream and the one that makes its input. Nodes are
numbered from 1 so that both come before it; number 0 is the beginning of the step. The graph knows no durations, so it
is made once for a shape and timed for every plan of that shape.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, get_args

from shardwise.errors import SimulationError
from shardwise.schedules.actions import Action
from shardwise.schedules.make import make_schedule
from shardwise.schedules.shape import PipelineSchedule, ScheduleShape
from shardwise.units import Seconds

Sends = Literal["free", "overlapped", "blocking"]
"""Passing a result to another rank takes no time, or runs beside compute, or holds the sender's compute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphStyle:
    """How a pipeline graph models sends between ranks and DualPipe's pairs of a forward and a backward."""

    sends: Sends = "free"
    are_pairs_joined: bool = False
    """Whether DualPipe's pairs of forward and backward are one block that waits for both inputs and hands on both
    results at its end; if not they run in turn, each as soon as its own input is there, and hand on at the end."""


NodeKind = Literal[
    "forward", "backward", "input_backward", "weight_backward", "joined", "gate", "send_forward", "send_backward"
]
"""``joined`` is a forward and a backward in one block, ``gate`` the moment at which both have their inputs."""
NODE_KINDS: tuple[NodeKind, ...] = get_args(NodeKind)


WorkCounts = tuple[tuple[int, int], ...]
"""Numbers of kinds of work, each with how often it is done."""


@dataclass(frozen=True, slots=True, eq=False)
class PipelineGraph:
    """Nodes in a sequence in which each comes after those it waits for."""

    schedule: PipelineSchedule
    first: tuple[int, ...]
    """For each node, the one before it on its stream."""
    second: tuple[int, ...]
    """For each node, the one whose result it takes."""
    work: tuple[int, ...]
    """For each node, the number of its duration: k times chunks plus c for kind k (of ``NODE_KINDS``) of chunk c."""
    micro_batch: tuple[int, ...]
    streams: tuple[tuple[int, ...], ...]
    """Nodes of each stream in the order they run: the compute streams of all ranks, then their sends to the next
    chunk, then their sends to the one before."""
    partner: Mapping[int, tuple[int, int]]
    """For each joined node, the chunk and the micro-batch of its backward."""
    compute_counts: tuple[WorkCounts, ...]
    """For each rank, how often it does each kind of computation."""
    first_forwards: tuple[int, ...]
    """For each chunk, the node of its first forward."""

    @property
    def num_nodes(self) -> int:
        """Passes, blocks, gates and sends."""
        return len(self.first)

    def first_work(self, kind: NodeKind) -> int:
        """The number of a kind's work for chunk 0."""
        return NODE_KINDS.index(kind) * self.schedule.num_chunks

    def kind(self, node: int) -> NodeKind:
        """The kind of a node: a pass of a chunk, a joined pair of passes, its gate, or a send."""
        return NODE_KINDS[self.work[node - 1] // self.schedule.num_chunks]

    def chunk(self, node: int) -> int:
        """The chunk that a node works for; of a joined block the one that runs forward."""
        return self.work[node - 1] % self.schedule.num_chunks

    def rank(self, node: int) -> int:
        """The rank that runs a node."""
        return self.schedule.rank_of_chunk[self.chunk(node)]

    def backward_of(self, node: int) -> tuple[int, int] | None:
        """The chunk and the micro-batch that a node computes the input gradient of, if it does."""
        code, chunk = divmod(self.work[node - 1], self.schedule.num_chunks)
        if NODE_KINDS[code] in ("backward", "input_backward"):
            return chunk, self.micro_batch[node - 1]
        return self.partner.get(node)


def count_work(works: Sequence[int], end: int) -> WorkCounts:
    """How often each work below ``end`` is done: gates and sends have the highest numbers and are no computation."""
    return tuple((work, count) for work, count in sorted(Counter(works).items()) if work < end)


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstPass:
    """When the first forward of a chunk may start, given the gathers of its parameters for the step."""

    not_before_s: Seconds = 0.0
    """When gathers issued at the beginning of the step have come far enough for this forward."""
    longer_s: Seconds = 0.0
    """Seconds that gathers add when they are issued once the input is there."""


def end_times_s(
    graph: PipelineGraph, durations_s: Sequence[Seconds], first_passes: Sequence[FirstPass] = ()
) -> list[Seconds]:
    """When each node ends; the entry at 0 is the beginning of the step.

    A node starts when its stream is free and its input is there. ``durations_s`` is indexed by ``graph.work``,
    ``first_passes`` by chunk.
    """
    ends = [0.0]
    waits = dict(zip(graph.first_forwards, first_passes, strict=True)) if first_passes else {}
    for node in sorted(waits):
        _extend(ends, graph, durations_s, until=node - 1)
        position = node - 1
        start_s = max(ends[graph.first[position]], ends[graph.second[position]], waits[node].not_before_s)
        ends.append(start_s + waits[node].longer_s + durations_s[graph.work[position]])
    _extend(ends, graph, durations_s, until=graph.num_nodes)
    return ends


def _extend(ends: list[Seconds], graph: PipelineGraph, durations_s: Sequence[Seconds], *, until: int) -> None:
    """Compute the ends of the next nodes, up to one."""
    part = slice(len(ends) - 1, until)
    append = ends.append
    durations = map(durations_s.__getitem__, graph.work[part])
    for first, second, duration in zip(graph.first[part], graph.second[part], durations, strict=True):
        stream_free, input_there = ends[first], ends[second]
        append((stream_free if stream_free > input_there else input_there) + duration)


@lru_cache(maxsize=64)
def pipeline_graph(shape: ScheduleShape, style: GraphStyle, /) -> PipelineGraph:
    """The graph of a shape, made once."""
    return build_graph(make_schedule(shape), style)


def build_graph(schedule: PipelineSchedule, style: GraphStyle, /) -> PipelineGraph:
    """The graph of a schedule.

    Raises:
        SimulationError: the ranks would wait for each other forever.
    """
    writer = _GraphWriter(schedule, style)
    positions = [0] * schedule.shape.pp
    num_left = schedule.num_actions
    while num_left:
        reached = [writer.advance(rank, order, positions[rank]) for rank, order in enumerate(schedule.orders)]
        if reached == positions:
            raise _deadlock(schedule, positions)
        num_left -= sum(reached) - sum(positions)
        positions = reached
    return writer.graph()


def _deadlock(schedule: PipelineSchedule, positions: Sequence[int]) -> SimulationError:
    waiting = [
        f"rank {rank} before {order[position].text}"
        for rank, (order, position) in enumerate(zip(schedule.orders, positions, strict=True))
        if position < len(order)
    ]
    return SimulationError(
        f"the ranks wait for each other forever: {', '.join(waiting)}",
        code="schedule-deadlock",
        fix="move a pass before the one that waits for its result",
    )


_Route = tuple[list[int], int, int]
"""Where a result goes by micro-batch, and the stream and the work of the send that takes it there; work 0 for none."""


class _GraphWriter:
    """Writes nodes down as soon as their inputs are written."""

    def __init__(self, schedule: PipelineSchedule, style: GraphStyle) -> None:
        self._schedule = schedule
        self._style = style
        self._first: list[int] = []
        self._second: list[int] = []
        self._work: list[int] = []
        self._micro_batch: list[int] = []
        self._partner: dict[int, tuple[int, int]] = {}
        pp, m, num_chunks = schedule.shape.pp, schedule.shape.num_microbatches, schedule.num_chunks
        self._streams: list[list[int]] = [[] for _ in range(3 * pp)]
        self._last = [0] * (3 * pp)
        length = schedule.chunks_per_model
        self._forward_inputs = [[-1 if chunk % length else 0] * m for chunk in range(num_chunks)]
        """Node that makes the input of a chunk's forward; 0 when there is none, -1 while nobody has made it."""
        self._backward_inputs = [[-1] * m for _ in range(num_chunks)]
        self._code_of = {kind: code * num_chunks for code, kind in enumerate(NODE_KINDS)}
        """Number of a kind's work for chunk 0."""
        nowhere = [0] * m
        self._forward_routes: list[_Route] = [
            self._route(chunk, chunk + 1, self._forward_inputs[chunk + 1])
            if (chunk + 1) % length
            else (self._backward_inputs[chunk], 0, 0)
            for chunk in range(num_chunks)
        ]
        self._backward_routes: list[_Route] = [
            self._route(chunk, chunk - 1, self._backward_inputs[chunk - 1]) if chunk % length else (nowhere, 0, 0)
            for chunk in range(num_chunks)
        ]

    def advance(self, rank: int, order: Sequence[Action], position: int) -> int:
        """Write a rank's actions from a position on; returns the position of the first whose input is not there."""
        while position < len(order):
            action = order[position]
            needed = self._needed(action)
            if needed < 0:
                return position
            if action.joins_next:
                partner = order[position + 1]
                needed_too = self._needed(partner)
                if needed_too < 0:
                    return position
                self._join(rank, action, partner, (needed, needed_too))
                position += 2
            else:
                work = self._code_of[action.kind] + action.chunk
                self._hand_on(action, self._add(rank, work, action.micro_batch, needed))
                position += 1
        return position

    def _needed(self, action: Action) -> int:
        """The node that makes an action's input, 0 for none, -1 when it is not written yet."""
        if action.kind == "weight_backward":
            return 0
        inputs = self._forward_inputs if action.kind == "forward" else self._backward_inputs
        return inputs[action.chunk][action.micro_batch]

    def _join(self, rank: int, forward: Action, backward: Action, needed: tuple[int, int]) -> None:
        """A pair: one block behind a gate, which together wait for both inputs; or two nodes in turn."""
        if self._style.are_pairs_joined:
            self._add(rank, self._code_of["gate"] + forward.chunk, forward.micro_batch, needed[0])
            node = self._add(rank, self._code_of["joined"] + forward.chunk, forward.micro_batch, needed[1])
            self._partner[node] = (backward.chunk, backward.micro_batch)
        else:
            self._add(rank, self._code_of["forward"] + forward.chunk, forward.micro_batch, needed[0])
            node = self._add(rank, self._code_of["backward"] + backward.chunk, backward.micro_batch, needed[1])
        self._hand_on(forward, node)
        self._hand_on(backward, node)

    def _add(self, stream: int, work: int, micro_batch: int, needed: int) -> int:
        """Append a node to a stream; returns its number."""
        self._first.append(self._last[stream])
        self._second.append(needed)
        self._work.append(work)
        self._micro_batch.append(micro_batch)
        node = len(self._first)
        self._last[stream] = node
        self._streams[stream].append(node)
        return node

    def _hand_on(self, action: Action, node: int) -> None:
        """Give a result to the chunk that needs it, through a send when that is on another rank."""
        if action.kind == "weight_backward":
            return
        routes = self._forward_routes if action.kind == "forward" else self._backward_routes
        inputs, stream, send = routes[action.chunk]
        if send:
            node = self._add(stream, send, action.micro_batch, node)
        inputs[action.micro_batch] = node

    def _route(self, source: int, target: int, inputs: list[int]) -> _Route:
        """The route of a chunk's result to the next chunk or to the one before."""
        rank = self._schedule.rank_of_chunk[source]
        if self._style.sends == "free" or self._schedule.rank_of_chunk[target] == rank:
            return inputs, 0, 0
        is_forward = target > source
        lane = 0 if self._style.sends == "blocking" else 1 if is_forward else 2
        kind: NodeKind = "send_forward" if is_forward else "send_backward"
        return inputs, lane * self._schedule.shape.pp + rank, self._code_of[kind] + source

    def graph(self) -> PipelineGraph:
        """The graph of the nodes that were written."""
        return PipelineGraph(
            schedule=self._schedule,
            first=tuple(self._first),
            second=tuple(self._second),
            work=tuple(self._work),
            micro_batch=tuple(self._micro_batch),
            streams=tuple(map(tuple, self._streams)),
            partner=self._partner,
            compute_counts=tuple(
                count_work([self._work[node - 1] for node in nodes], self._code_of["gate"])
                for nodes in self._streams[: self._schedule.shape.pp]
            ),
            first_forwards=self._first_forwards(),
        )

    def _first_forwards(self) -> tuple[int, ...]:
        """For each chunk, the first node that runs it forward; a work of forwards has its chunk's number."""
        num_chunks, joined = self._schedule.num_chunks, self._code_of["joined"]
        found: dict[int, int] = {}
        for node, work in enumerate(self._work, start=1):
            if work < num_chunks or joined <= work < joined + num_chunks:
                found.setdefault(work % num_chunks, node)
        return tuple(found[chunk] for chunk in range(num_chunks))

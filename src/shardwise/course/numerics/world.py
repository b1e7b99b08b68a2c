"""Simulated ranks: each runs its own program and waits at every exchange until its partners have come there too.

A program is a generator. ``x = yield from rank.all_reduce(x, group, name="…")`` reads as it would in the code of a real
rank; in between, one rank runs at a time, so that nothing is left to chance.
"""

from collections import deque
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np

from shardwise.course.numerics.arrays import Array, Arrays, Integers
from shardwise.course.numerics.exchange import Outcome, exchange
from shardwise.course.numerics.held import Held, total_bytes
from shardwise.engines.profile import EngineProfile
from shardwise.engines.table import engine_profile
from shardwise.errors import SimulationError
from shardwise.layout import Layout
from shardwise.ledger import MemoryComponent
from shardwise.plan import Plan
from shardwise.step.collective_calls import Group, Groups
from shardwise.step.inventory import Axis, CollectiveKind, OperationPhase
from shardwise.units import Bytes

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One rank's part of an exchange."""

    kind: CollectiveKind
    group: Group
    name: str
    arrays: Arrays = ()
    is_maximum: bool = False
    is_counted: bool = True
    """Whether it is payload; sizes of what comes next are not."""
    to_rank: int | None = None
    """The receiver of a message to one rank; ``None`` for everything else."""
    from_rank: int | None = None
    """The sender of a message from one rank; ``None`` for everything else."""


Program = Generator[Request, Arrays, T]
"""What one rank does, stopping at every exchange."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One exchange as one rank took part in it."""

    rank: int
    name: str
    kind: CollectiveKind
    axis: Axis
    group_size: int
    phase: OperationPhase
    payload_bytes: Bytes
    sent_bytes: Bytes
    members: tuple[int, ...]
    """Ranks that took part, in the order of the ring; of a message to one rank, the sender and the receiver."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something a rank did, and what it held after it."""

    text: str
    phase: OperationPhase
    message: Message | None
    held: tuple[tuple[MemoryComponent, Bytes], ...]


@dataclass(slots=True, kw_only=True)
class Rank:
    """One simulated rank: who it is, what it has sent and what it holds."""

    number: int
    plan: Plan
    phase: OperationPhase = "forward"
    messages: list[Message] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    held: Held = field(default_factory=Held)

    @property
    def layout(self) -> Layout:
        """The degrees."""
        return self.plan.layout

    @property
    def groups(self) -> Groups:
        """The groups of the layout."""
        return Groups(layout=self.plan.layout)

    @property
    def profile(self) -> EngineProfile:
        """How the engine implements a step."""
        return engine_profile(self.plan.engine)

    def index_in(self, group: Group) -> int:
        """Position among the members of its own group."""
        return (self.number // group.stride) % group.size

    @property
    def stage(self) -> int:
        """Pipeline stage."""
        return self.number // (self.layout.world_size // self.layout.pp)

    @property
    def data_index(self) -> int:
        """Which part of the batch it reads."""
        layout = self.layout
        return (self.number // (layout.tp * layout.cp)) % layout.data_parallel_size

    def all_reduce(self, array: Array, group: Group, *, name: str, is_maximum: bool = False) -> Program[Array]:
        """The sum (or maximum) of everybody's array."""
        if group.size == 1:
            return array
        request = Request(kind="all_reduce", group=group, name=name, arrays=(array,), is_maximum=is_maximum)
        return (yield request)[0]

    def all_gather(self, array: Array, group: Group, *, name: str) -> Program[Arrays]:
        """Everybody's array, in the order of the members."""
        if group.size == 1:
            return (array,)
        return (yield Request(kind="all_gather", group=group, name=name, arrays=(array,)))

    def reduce_scatter(self, pieces: Arrays, group: Group, *, name: str) -> Program[Array]:
        """The sum of everybody's piece for this member."""
        if group.size == 1:
            return pieces[0]
        return (yield Request(kind="reduce_scatter", group=group, name=name, arrays=pieces))[0]

    def all_to_all(self, pieces: Arrays, group: Group, *, name: str) -> Program[Arrays]:
        """Send a piece to every member of the group; gives the pieces that the members sent to this rank."""
        if group.size == 1:
            return pieces
        return (yield Request(kind="all_to_all", group=group, name=name, arrays=pieces))

    def all_to_all_counts(self, counts: tuple[Integers, ...], group: Group) -> Program[tuple[Integers, ...]]:
        """How much every member will send here next; a few integers, not counted as payload."""
        if group.size == 1:
            return counts
        numbers = tuple(one.astype(np.float64) for one in counts)
        received = yield Request(
            kind="all_to_all", group=group, name="sizes of what follows", arrays=numbers, is_counted=False
        )
        return tuple(one.astype(np.int64) for one in received)

    def broadcast(self, array: Array | None, group: Group, *, name: str) -> Program[Array]:
        """The array of the one member that brings one."""
        arrays = () if array is None else (array,)
        return (yield Request(kind="broadcast", group=group, name=name, arrays=arrays))[0]

    def pass_on(self, arrays: Arrays, group: Group, *, name: str) -> Program[Arrays]:
        """Give everything to the next member of the ring and take what the previous one gives."""
        return (yield Request(kind="send_recv", group=group, name=name, arrays=arrays))

    def send(self, array: Array, to_rank: int, group: Group, *, name: str) -> Program[None]:
        """A message to one rank, which need not wait for it yet; ``name`` tells messages apart."""
        yield Request(kind="send_recv", group=group, name=name, arrays=(array,), to_rank=to_rank)

    def receive(self, from_rank: int, group: Group, *, name: str) -> Program[Array]:
        """The message of that name from one rank."""
        return (yield Request(kind="send_recv", group=group, name=name, from_rank=from_rank))[0]

    def members_of(self, group: Group) -> tuple[int, ...]:
        """The ranks of the group of this kind that this rank belongs to."""
        first = self.number - self.index_in(group) * group.stride
        return tuple(first + position * group.stride for position in range(group.size))

    def note(self, text: str) -> None:
        """Write down what it has just done."""
        self.events.append(Event(text=text, phase=self.phase, message=None, held=tuple(self.held.now.items())))

    def count(self, request: Request, *, payload_bytes: Bytes, sent_bytes: Bytes) -> None:
        """Write an exchange down."""
        to_one = request.to_rank
        message = Message(
            rank=self.number,
            name=request.name,
            kind=request.kind,
            axis=request.group.axis,
            group_size=request.group.size,
            phase=self.phase,
            payload_bytes=payload_bytes,
            sent_bytes=sent_bytes,
            members=self.members_of(request.group) if to_one is None else (self.number, to_one),
        )
        self.messages.append(message)
        held = tuple(self.held.now.items())
        self.events.append(Event(text=request.name, phase=self.phase, message=message, held=held))


def run_world(ranks: Sequence[Rank], programs: Sequence[Program[T]]) -> tuple[T, ...]:
    """Run every rank's program to its end; what each returns.

    Raises:
        SimulationError: ranks wait for each other for ever, or meet in one group with different collectives.
    """
    return _World(ranks, programs).run()


class _World(Generic[T]):
    """Runs the programs of all ranks, and knows which rank waits for which."""

    def __init__(self, ranks: Sequence[Rank], programs: Sequence[Program[T]]) -> None:
        self.ranks, self.programs = ranks, programs
        self.ready: deque[tuple[int, Arrays | None]] = deque((rank.number, None) for rank in ranks)
        self.waiting: dict[int, Request] = {}
        self.letters: dict[tuple[int, int, str], Arrays] = {}
        self.results: dict[int, T] = {}

    def run(self) -> tuple[T, ...]:
        while self.ready:
            number, reply = self.ready.popleft()
            program = self.programs[number]
            try:
                request = next(program) if reply is None else program.send(reply)
            except StopIteration as end:
                self.results[number] = end.value
                continue
            if request.to_rank is not None:
                self._send(number, request, request.to_rank)
            elif request.from_rank is not None:
                self._receive(number, request, request.from_rank)
            else:
                self._meet(number, request)
        if self.waiting:
            raise _deadlock(self.waiting)
        return tuple(self.results[rank.number] for rank in self.ranks)

    def _send(self, number: int, request: Request, to_rank: int) -> None:
        num_bytes = total_bytes(request.arrays)
        self.ranks[number].count(request, payload_bytes=num_bytes, sent_bytes=num_bytes)
        self.ready.append((number, ()))
        wanted = self.waiting.get(to_rank)
        if wanted is not None and wanted.from_rank == number and wanted.name == request.name:
            del self.waiting[to_rank]
            self.ready.append((to_rank, request.arrays))
        else:
            self.letters[number, to_rank, request.name] = request.arrays

    def _receive(self, number: int, request: Request, from_rank: int) -> None:
        arrays = self.letters.pop((from_rank, number, request.name), None)
        if arrays is None:
            self.waiting[number] = request
        else:
            self.ready.append((number, arrays))

    def _meet(self, number: int, request: Request) -> None:
        self.waiting[number] = request
        group = request.group
        members = self.ranks[number].members_of(group)
        requests = [self.waiting[member] for member in members if member in self.waiting]
        if any(one.group != group or one.from_rank is not None for one in requests) or len(requests) < group.size:
            return
        if any((one.kind, one.name) != (request.kind, request.name) for one in requests):
            raise _mismatch(dict(zip(members, requests, strict=True)))
        outcomes = exchange(request.kind, [one.arrays for one in requests], is_maximum=request.is_maximum)
        for member, one, outcome in zip(members, requests, outcomes, strict=True):
            self._count(member, one, outcome)
            del self.waiting[member]
            self.ready.append((member, outcome.received))

    def _count(self, member: int, request: Request, outcome: Outcome) -> None:
        if request.is_counted:
            self.ranks[member].count(request, payload_bytes=outcome.payload_bytes, sent_bytes=outcome.sent_bytes)


def _named(waiting: dict[int, Request]) -> str:
    return ", ".join(f"rank {number} at {request.kind} '{request.name}'" for number, request in waiting.items())


def _deadlock(waiting: dict[int, Request]) -> SimulationError:
    return SimulationError(
        f"no rank can go on: {_named(waiting)}",
        code="simulate-deadlock",
        fix="let every member of a group call the same exchanges in the same order",
    )


def _mismatch(requests: dict[int, Request]) -> SimulationError:
    return SimulationError(
        f"the ranks of one group call different exchanges: {_named(requests)}",
        code="simulate-mismatch",
        fix="let every member of a group call the same exchanges in the same order",
    )


def scalar(value: float, like: Array) -> Array:
    """A number as an array of the same type as another."""
    return np.array([value], dtype=like.dtype)

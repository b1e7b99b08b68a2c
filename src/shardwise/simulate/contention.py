"""The event engine with a clock, for streams that slow each other down while they run at the same time."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

from shardwise.errors import SimulationError
from shardwise.simulate.engine import Run, Task, checked
from shardwise.units import Seconds

_ENDS, _STARTS = 0, 1
"""At one time ends are handled before starts, so that no stream is counted busy twice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contention:
    """Streams that take longer while others are busy.

    Both ways need two records. When several apply to a stream at once, the largest counts.
    """

    slowed: tuple[str, ...]
    while_busy: tuple[str, ...]
    slowdown_ratio: float
    """How many times longer a task takes while at least one of ``while_busy`` runs; 1.126 in Galvatron."""


def run_contended(program: Iterable[Task], contentions: Sequence[Contention]) -> Run:
    """Run a program whose streams slow each other down; a task's progress is piecewise linear.

    Raises:
        SimulationError: a task depends on one that is not listed before it or takes less than no time, or a slowdown is
            below 1.

    >>> forward = Task(name="forward", stream="compute", duration_s=2.0)
    >>> send = Task(name="send", stream="pp", duration_s=1.0, depends_on=(0,))
    >>> run_contended([forward, send], ()).ends_s
    (2.0, 3.0)
    """
    tasks = checked(program)
    for contention in contentions:
        if contention.slowdown_ratio < 1:
            raise SimulationError(
                f"a slowdown of {contention.slowdown_ratio} would be a speed-up",
                code="simulation-slowdown",
                fix="give a slowdown of 1 or more",
            )
    clock = _Clock(_Program.of(tasks), contentions)
    clock.run()
    return clock.result(tasks)


@dataclass(frozen=True, slots=True, eq=False)
class _Program:
    """Launches and tasks alike as nodes: a task waits for its launch as for any other node."""

    streams: tuple[str, ...]
    durations_s: tuple[Seconds, ...]
    waits_for: tuple[int, ...]
    """How many nodes must end before each: what it depends on, its launch, and its predecessor on the stream."""
    followers: tuple[tuple[int, ...], ...]
    node_of_task: tuple[int, ...]

    @staticmethod
    def of(tasks: Sequence[Task]) -> "_Program":
        """The nodes of a program, each launch right before its task."""
        streams: list[str] = []
        durations: list[Seconds] = []
        waits: list[set[int]] = []
        node_of_task: list[int] = []
        last: dict[str, int] = {}

        def add(stream: str, duration_s: Seconds, after: set[int]) -> int:
            node = len(streams)
            streams.append(stream)
            durations.append(duration_s)
            waits.append(after | {last[stream]} if stream in last else after)
            last[stream] = node
            return node

        for task in tasks:
            after = {node_of_task[earlier] for earlier in task.depends_on}
            if task.issued_by is not None:
                after.add(add(task.issued_by, task.issue_s, set()))
            node_of_task.append(add(task.stream, task.duration_s, after))
        followers: list[list[int]] = [[] for _ in streams]
        for node, after in enumerate(waits):
            for earlier in after:
                followers[earlier].append(node)
        return _Program(
            tuple(streams), tuple(durations), tuple(map(len, waits)), tuple(map(tuple, followers)), tuple(node_of_task)
        )


@dataclass(slots=True)
class _Running:
    """A node that runs, and how far it is."""

    node: int
    left_s: Seconds
    """Seconds that are left of its undisturbed duration."""
    ratio: float
    """How many times slower than undisturbed it runs now."""
    since_s: Seconds
    event: int = -1
    """Sequence number of the event at which it will end if nothing changes."""


@dataclass(slots=True, eq=False)
class _Clock:
    """The queue of events ``(time, priority, sequence number, node)`` and what runs on each stream."""

    program: _Program
    contentions: Sequence[Contention]
    slowed_by: dict[str, list[Contention]] = field(default_factory=dict)
    """Contentions that slow a stream."""
    minded_by: dict[str, list[str]] = field(default_factory=dict)
    """Streams whose speed depends on whether a stream is busy."""
    queue: list[tuple[Seconds, int, int, int]] = field(default_factory=list)
    num_events: int = 0
    running: dict[str, _Running] = field(default_factory=dict)
    waiting: list[int] = field(default_factory=list)
    starts: list[Seconds] = field(default_factory=list)
    ends: list[Seconds] = field(default_factory=list)

    def run(self) -> None:
        """Handle events until the queue is empty."""
        for contention in self.contentions:
            for slowed in contention.slowed:
                self.slowed_by.setdefault(slowed, []).append(contention)
                for busy in contention.while_busy:
                    if busy != slowed:
                        self.minded_by.setdefault(busy, []).append(slowed)
        self.waiting = list(self.program.waits_for)
        self.starts = [0.0] * len(self.waiting)
        self.ends = [0.0] * len(self.waiting)
        for node, count in enumerate(self.waiting):
            if count == 0:
                self._announce(0.0, _STARTS, node)
        while self.queue:
            now, priority, event, node = heappop(self.queue)
            stream = self.program.streams[node]
            if priority == _STARTS:
                self.starts[node] = now
                self.running[stream] = _Running(node, self.program.durations_s[node], self._ratio(stream), now)
                self._announce_end(self.running[stream], now)
            elif self.running.get(stream) is None or self.running[stream].event != event:
                continue
            else:
                self.ends[node] = now
                del self.running[stream]
                self._release(now, node)
            self._adjust(now, stream)

    def _announce(self, time_s: Seconds, priority: int, node: int) -> int:
        """Put an event into the queue; returns its sequence number."""
        self.num_events += 1
        heappush(self.queue, (time_s, priority, self.num_events, node))
        return self.num_events

    def _announce_end(self, running: _Running, now: Seconds) -> None:
        running.event = self._announce(now + running.left_s * running.ratio, _ENDS, running.node)

    def _release(self, now: Seconds, node: int) -> None:
        """Start the tasks that waited for nothing but this node."""
        for follower in self.program.followers[node]:
            self.waiting[follower] -= 1
            if self.waiting[follower] == 0:
                self._announce(now, _STARTS, follower)

    def _ratio(self, stream: str) -> float:
        """How many times slower a stream runs now."""
        return max(
            (
                contention.slowdown_ratio
                for contention in self.slowed_by.get(stream, ())
                if any(other in self.running and other != stream for other in contention.while_busy)
            ),
            default=1.0,
        )

    def _adjust(self, now: Seconds, changed: str) -> None:
        """Give every stream that minds the changed one its new speed and its new end."""
        for stream in self.minded_by.get(changed, ()):
            running = self.running.get(stream)
            if running is None:
                continue
            ratio = self._ratio(stream)
            if ratio != running.ratio:
                running.left_s = max(0.0, running.left_s - (now - running.since_s) / running.ratio)
                running.ratio, running.since_s = ratio, now
                self._announce_end(running, now)

    def result(self, tasks: tuple[Task, ...]) -> Run:
        """Starts and ends of the tasks."""
        nodes = self.program.node_of_task
        return Run(
            tasks=tasks,
            starts_s=tuple(self.starts[node] for node in nodes),
            ends_s=tuple(self.ends[node] for node in nodes),
            issued_s=tuple(
                self.ends[node - 1] if task.issued_by is not None else 0.0
                for node, task in zip(nodes, tasks, strict=True)
            ),
        )

"""The event engine: a program of tasks on streams, and when each of them runs.

Life of a task: *listed* in a program; *issued* once the CPU that launches it has worked through what it launches
before (at once, when no CPU launches it); *ready* once the tasks it depends on are done and its stream has finished
what was listed for it before; *running* for its duration; *done*. A stream runs its tasks in the order they are listed,
one at a time.

A task may depend only on tasks listed before it, as a CUDA stream can wait only for an event that has been recorded.
That makes the times of a program without contention one sweep over it; with contention ``contention.py`` moves a clock.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from shardwise.errors import SimulationError
from shardwise.simulate.spans import Span, SpanCategory
from shardwise.units import Seconds

FOREVER_S = float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A task: work of known duration that one stream runs, once the tasks it waits for have ended."""

    name: str
    stream: str
    duration_s: Seconds
    depends_on: tuple[int, ...] = ()
    """Positions in the program of earlier tasks that must be done first."""
    issued_by: str | None = None
    """Stream of the CPU that launches it; ``None`` when the launch never matters."""
    issue_s: Seconds = 0.0
    """Time the launch takes on that stream."""
    category: SpanCategory = "other"
    micro_batch: int | None = None
    chunk: int | None = None
    slowdown_ratio: float = 1.0
    """How many times slower a collective and computation are while both run; plain programs do not read it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """When every task of a program ran."""

    tasks: tuple[Task, ...]
    starts_s: tuple[Seconds, ...]
    ends_s: tuple[Seconds, ...]
    issued_s: tuple[Seconds, ...]
    """When the launch of each task was through; 0 where no CPU launches it."""

    @property
    def makespan_s(self) -> Seconds:
        """Seconds from the beginning to the last end."""
        return max(self.ends_s, default=0.0)

    @property
    def streams(self) -> tuple[str, ...]:
        """Streams in the order they are first listed, launching CPUs after the streams they launch to."""
        names = dict.fromkeys(task.stream for task in self.tasks)
        return tuple(names | dict.fromkeys(task.issued_by for task in self.tasks if task.issued_by is not None))

    def busy_s(self, stream: str) -> Seconds:
        """Time a stream runs tasks or launches."""
        runs = sum(
            end - start
            for task, start, end in zip(self.tasks, self.starts_s, self.ends_s, strict=True)
            if task.stream == stream
        )
        return runs + sum(task.issue_s for task in self.tasks if task.issued_by == stream)

    def idle_s(self, stream: str) -> Seconds:
        """Time of the makespan in which a stream does nothing."""
        return self.makespan_s - self.busy_s(stream)

    @property
    def spans(self) -> tuple[Span, ...]:
        """The tasks as spans, in the order of the program."""
        return tuple(
            Span(
                stream=task.stream,
                name=task.name,
                category=task.category,
                start_s=start,
                end_s=end,
                micro_batch=task.micro_batch,
                chunk=task.chunk,
            )
            for task, start, end in zip(self.tasks, self.starts_s, self.ends_s, strict=True)
        )


def run_program(program: Iterable[Task]) -> Run:
    """Run a program whose streams do not disturb each other.

    A task starts when its stream is free, what it depends on is done and its CPU has issued it.

    Raises:
        SimulationError: a task depends on one that is not listed before it, or takes less than no time.

    >>> forward = Task(name="forward", stream="compute", duration_s=2.0)
    >>> send = Task(name="send", stream="pp", duration_s=1.0, depends_on=(0,))
    >>> run_program([forward, send]).ends_s
    (2.0, 3.0)
    """
    tasks = checked(program)
    free_s: dict[str, Seconds] = {}
    starts: list[Seconds] = []
    ends: list[Seconds] = []
    issues: list[Seconds] = []
    for task in tasks:
        issued = 0.0
        if task.issued_by is not None:
            issued = free_s.get(task.issued_by, 0.0) + task.issue_s
            free_s[task.issued_by] = issued
        stream_free = free_s.get(task.stream, 0.0)
        start = stream_free if stream_free > issued else issued
        for earlier in task.depends_on:
            done = ends[earlier]
            start = start if start > done else done
        end = start + task.duration_s
        free_s[task.stream] = end
        starts.append(start)
        ends.append(end)
        issues.append(issued)
    return Run(tasks=tasks, starts_s=tuple(starts), ends_s=tuple(ends), issued_s=tuple(issues))


def checked(program: Iterable[Task]) -> tuple[Task, ...]:
    """The tasks of a program that can run."""
    tasks = tuple(program)
    for position, task in enumerate(tasks):
        if not (0.0 <= task.duration_s < FOREVER_S and 0.0 <= task.issue_s < FOREVER_S):
            raise SimulationError(
                f"task {position} ({task.name}) takes {task.duration_s} s and {task.issue_s} s to issue",
                code="simulation-duration",
                fix="give durations of 0 s or more",
            )
        for earlier in task.depends_on:
            if not 0 <= earlier < position:
                raise SimulationError(
                    f"task {position} ({task.name}) depends on {earlier}, which is not listed before it",
                    code="simulation-order",
                    fix="list a task after those it depends on",
                )
    return tasks

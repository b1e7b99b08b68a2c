"""A program of tasks on streams, and when each of them runs; ``contention.py`` moves the clock.

Life of a task: *listed* in a program; *issued* once the CPU that launches it has worked through what it launches
before (at once, when no CPU launches it); *ready* once the tasks it depends on are done and its stream has finished
what was listed for it before; *running* for its duration; *done*. A stream runs its tasks in the order they are listed,
one at a time.

A task may depend only on tasks listed before it, as a CUDA stream can wait only for an event that has been recorded.
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
    """How many times slower a collective and computation are while both run."""


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


def checked(program: Iterable[Task]) -> tuple[Task, ...]:
    """The tasks of a program that can run.

    Raises:
        SimulationError: a task depends on one that is not listed before it, or takes less than no time.
    """
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

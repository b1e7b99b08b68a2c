"""The chain of tasks that the makespan is made of."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from shardwise.simulate.engine import Run
from shardwise.units import Seconds

Reason = Literal["beginning", "dependency", "stream", "launch"]
"""Why a task could not start earlier."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A task of the critical path."""

    position: int
    """In the program."""
    reason: Reason
    """What it waited for last."""
    launching_s: Seconds = 0.0
    """Launches between the task before and this one, when it waited for them."""


def critical_path(run: Run) -> tuple[Step, ...]:
    """From the first task to the one that ends last; its durations and launches sum to the makespan.

    Of several chains the one through dependencies is taken before the one along a stream, and earlier tasks before
    later ones.
    """
    if not run.tasks:
        return ()
    previous = _previous_on_stream(run)
    position: int | None = run.ends_s.index(run.makespan_s)
    steps = []
    while position is not None:
        reason, earlier, launching_s = _reason(run, position, previous)
        steps.append(Step(position=position, reason=reason, launching_s=launching_s))
        position = earlier
    return tuple(reversed(steps))


def _previous_on_stream(run: Run) -> list[int | None]:
    last: dict[str, int] = {}
    previous: list[int | None] = []
    for position, task in enumerate(run.tasks):
        previous.append(last.get(task.stream))
        last[task.stream] = position
    return previous


def _reason(run: Run, position: int, previous: Sequence[int | None]) -> tuple[Reason, int | None, Seconds]:
    """Why a task started when it did, the task it waited for, and the launches between the two."""
    task, start_s = run.tasks[position], run.starts_s[position]
    for earlier in sorted(task.depends_on):
        if run.ends_s[earlier] == start_s:
            return "dependency", earlier, 0.0
    before = previous[position]
    if before is not None and run.ends_s[before] == start_s:
        return "stream", before, 0.0
    if start_s == 0:
        return "beginning", None, 0.0
    if task.issued_by is not None and run.issued_s[position] == start_s:
        return _behind_launches(run, position, cpu=task.issued_by, launching_s=task.issue_s)
    return _behind_launches(run, position, cpu=task.stream, launching_s=0.0)


def _behind_launches(run: Run, position: int, *, cpu: str, launching_s: Seconds) -> tuple[Reason, int | None, Seconds]:
    """The task of the CPU itself that the launches before a position had to wait for, if there is one."""
    for earlier in range(position - 1, -1, -1):
        task = run.tasks[earlier]
        if task.stream == cpu:
            return "launch", earlier, launching_s
        if task.issued_by == cpu:
            launching_s += task.issue_s
    return "launch", None, launching_s

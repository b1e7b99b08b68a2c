"""How much of the makespan is there only because some tasks take time: exposed communication and its shares."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from shardwise.simulate.contention import Contention, run_contended
from shardwise.simulate.engine import Task, run_program
from shardwise.units import Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Exposure:
    """What one group of tasks adds to the makespan."""

    group: str
    total_s: Seconds
    """Of all its tasks, hidden or not."""
    alone_s: Seconds
    """What the makespan would lose if only this group were free."""
    share_s: Seconds
    """Its part of what all groups expose together: the shares sum to that."""

    @property
    def hidden_s(self) -> Seconds:
        """Time that passes under other tasks."""
        return self.total_s - self.share_s


def exposed_s(
    program: Sequence[Task], is_free: Callable[[Task], bool], *, contentions: Sequence[Contention] = ()
) -> Seconds:
    """The makespan minus the makespan in which the chosen tasks take no time."""
    return _makespan_s(program, contentions) - _makespan_s(_freed(program, is_free), contentions)


def attribute_exposed(
    program: Sequence[Task],
    group_of: Callable[[Task], str | None],
    *,
    contentions: Sequence[Contention] = (),
) -> tuple[Exposure, ...]:
    """What every group of tasks exposes, by axis or by unit; ``None`` keeps a task out of all groups.

    Groups that hide behind each other expose nothing alone, and together more than the sum. Shares are therefore what
    each group takes off the makespan when the groups are freed one after the other, in the order they first appear.
    """
    groups = tuple(dict.fromkeys(group for task in program if (group := group_of(task)) is not None))

    def makespan_without_s(freed: tuple[str, ...]) -> Seconds:
        return _makespan_s(_freed(program, lambda task: group_of(task) in freed), contentions)

    left_s = [makespan_without_s(groups[:count]) for count in range(len(groups) + 1)]
    return tuple(
        Exposure(
            group=group,
            total_s=sum(task.duration_s for task in program if group_of(task) == group),
            alone_s=left_s[0] - makespan_without_s((group,)),
            share_s=left_s[index] - left_s[index + 1],
        )
        for index, group in enumerate(groups)
    )


def _freed(program: Sequence[Task], is_free: Callable[[Task], bool]) -> list[Task]:
    return [replace(task, duration_s=0.0) if is_free(task) else task for task in program]


def _makespan_s(program: Sequence[Task], contentions: Sequence[Contention]) -> Seconds:
    return (run_contended(program, contentions) if contentions else run_program(program)).makespan_s

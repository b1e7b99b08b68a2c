"""The tasks of one block for one micro-batch, and how they are listed.

Every axis of the layout is a process group with a stream of its own. A collective is waited for where it stands, unless
it is listed beside something that does not need it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from shardwise.predict.tasks import COMPUTE
from shardwise.simulate.engine import Task
from shardwise.step.inventory import CollectiveKind, OperationPhase
from shardwise.units import Seconds


class TaskWriter:
    """Lists tasks one after the other, and takes every call of the block once."""

    def __init__(self, calls: Iterable[Task], phase: OperationPhase) -> None:
        self.phase = phase
        self.tail: tuple[int, ...] = ()
        """Positions of the tasks that the next task comes after."""
        self._calls = list(calls)
        self._tasks: list[Task] = []

    def take(self, axis: str, kind: CollectiveKind, *, name: str | None = None) -> Task | None:
        """The first call of a kind that has no place yet."""
        for position, call in enumerate(self._calls):
            if call.stream == axis and call.category == kind and name in (None, call.name):
                return self._calls.pop(position)
        return None

    def count(self, axis: str, kind: CollectiveKind) -> int:
        """Number of calls of a kind that have no place yet."""
        return sum(call.stream == axis and call.category == kind for call in self._calls)

    def work(self, name: str, duration_s: Seconds) -> None:
        """Compute after everything before."""
        self.tail = self.add_work(name, duration_s, self.tail)

    def wait(self, call: Task | None) -> None:
        """Communicate after everything before, and wait for it."""
        if call is not None:
            self.tail = self._add(replace(call, depends_on=self.tail, slowdown_ratio=1.0))

    def beside(self, call: Task | None, name: str, duration_s: Seconds) -> None:
        """Communicate and compute at once, and wait for both."""
        before = self.tail
        started = () if call is None else self.add_call(call, before)
        worked = self.add_work(name, duration_s, before)
        self.tail = (started or before) if worked == before else (*started, *worked)

    def add_work(self, name: str, duration_s: Seconds, after: tuple[int, ...]) -> tuple[int, ...]:
        """List computation; returns its position, or what it would come after when there is none."""
        if duration_s <= 0:
            return after
        return self._add(Task(name=name, stream=COMPUTE, duration_s=duration_s, depends_on=after, category=self.phase))

    def add_call(self, call: Task, after: tuple[int, ...]) -> tuple[int, ...]:
        """List a collective; returns its position."""
        return self._add(replace(call, depends_on=after))

    def finished(self) -> tuple[Task, ...]:
        """All tasks; calls without a place are waited for at the end."""
        for call in self._calls:
            self.wait(call)
        self._calls = []
        return tuple(self._tasks)

    def _add(self, task: Task) -> tuple[int, ...]:
        self._tasks.append(task)
        return (len(self._tasks) - 1,)


def in_turn(tasks: Sequence[Task]) -> tuple[Task, ...]:
    """The tasks one after the other, as under a host that waits for each."""
    return tuple(
        replace(task, depends_on=(position - 1,) if position else (), slowdown_ratio=1.0)
        for position, task in enumerate(tasks)
    )


def is_chain(tasks: Sequence[Task]) -> bool:
    """Whether every task waits for the one before it, so that nothing is hidden."""
    return all(position == 0 or position - 1 in task.depends_on for position, task in enumerate(tasks))

"""Tasks of a device beside those of its process groups: when they run, and what the collectives among them expose.

Computation is one line of tasks. The line is late where it waits for a collective, or is slowed by one that runs beside
it. Both are attributed to the collectives that ran at that time, so their shares sum to the delay at the end.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from shardwise.simulate.contention import Contention, run_contended
from shardwise.simulate.engine import Run, Task
from shardwise.units import Seconds

COMPUTE = "compute"
HOST = "host"
"""The CPU that launches kernels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExposedCall:
    """The exposed time that one collective adds to a pass."""

    name: str
    axis: str
    exposed_s: Seconds


def run_tasks(tasks: Sequence[Task]) -> Run:
    """When every task runs; a stream and computation slow each other by the largest ratio among the stream's tasks."""
    ratios: dict[str, float] = {}
    for task in tasks:
        if task.slowdown_ratio > 1:
            ratios[task.stream] = max(ratios.get(task.stream, 1.0), task.slowdown_ratio)
    return run_contended(tasks, tuple(_contentions(ratios)))


def _contentions(ratios: Mapping[str, float]) -> Iterator[Contention]:
    """Contentions of computation with streams, both ways."""
    for ratio in dict.fromkeys(ratios.values()):
        streams = tuple(stream for stream, own in ratios.items() if own == ratio)
        yield Contention(slowed=(COMPUTE,), while_busy=streams, slowdown_ratio=ratio)
        yield Contention(slowed=streams, while_busy=(COMPUTE,), slowdown_ratio=ratio)


def exposed_by_task(run: Run, line: Sequence[int]) -> dict[int, Seconds]:
    """Seconds by which each task beside the line makes the line later, by position of the task.

    Args:
        run: the run of a whole program.
        line: positions of the tasks that run one after the other whatever else happens.
    """
    shares = Shares(run, line)
    shares.lay(line)
    shares.lay_tail()
    return shares.found


def laid_to_calls(run: Run, *, exposed_s: Seconds) -> dict[int, Seconds]:
    """Seconds by which a program of one line of computation takes longer, by the collective that ran meanwhile.

    Args:
        run: the run of the program.
        exposed_s: seconds that the shares sum to.
    """
    found = exposed_by_task(run, [position for position, task in enumerate(run.tasks) if task.stream == COMPUTE])
    total_s = sum(found.values())
    scale = exposed_s / total_s if total_s else 0.0
    return {position: scale * seconds for position, seconds in found.items()}


def by_call(tasks: Sequence[Task], exposed: Mapping[int, Seconds], *, scale: float = 1.0) -> tuple[ExposedCall, ...]:
    """Add up the exposed time of tasks that have equal names."""
    totals: dict[tuple[str, str], Seconds] = {}
    for position, seconds in exposed.items():
        key = (tasks[position].name, tasks[position].stream)
        totals[key] = totals.get(key, 0.0) + seconds
    return tuple(
        ExposedCall(name=name, axis=axis, exposed_s=scale * seconds) for (name, axis), seconds in totals.items()
    )


class Shares:
    """Seconds by which the line is later than it could be, by the task that ran meanwhile."""

    def __init__(self, run: Run, line: Iterable[int]) -> None:
        in_line = set(line)
        self.found: dict[int, Seconds] = {}
        self._run = run
        self._beside = [position for position in range(len(run.tasks)) if position not in in_line]
        self._end_s = 0.0
        """When the part of the line that is accounted for ends."""

    def lay(self, line: Iterable[int], *, times: int = 1) -> None:
        """Account for what held up and slowed down the next tasks of the line, ``times`` times."""
        run = self._run
        for position in line:
            start_s, end_s = run.starts_s[position], run.ends_s[position]
            if start_s > self._end_s:
                self._lay(self._end_s, start_s, start_s - self._end_s, times)
            stretched_s = end_s - start_s - run.tasks[position].duration_s
            if stretched_s > 0 and run.tasks[position].stream == COMPUTE:
                self._lay(start_s, end_s, stretched_s, times)
            self._end_s = end_s

    def lay_tail(self) -> None:
        """Account for what ran after the end of the line."""
        if self._run.makespan_s > self._end_s:
            self._lay(self._end_s, self._run.makespan_s, self._run.makespan_s - self._end_s, 1)

    def _lay(self, from_s: Seconds, to_s: Seconds, seconds: Seconds, times: int) -> None:
        """Divide seconds among the collectives that ran in an interval, by how long they did."""
        run = self._run
        overlaps = [
            (position, min(to_s, run.ends_s[position]) - max(from_s, run.starts_s[position]))
            for position in self._beside
            if run.starts_s[position] < to_s and run.ends_s[position] > from_s
        ]
        total_s = sum(overlap for _, overlap in overlaps)
        if not total_s:
            return
        for position, overlap in overlaps:
            self.found[position] = self.found.get(position, 0.0) + times * seconds * overlap / total_s

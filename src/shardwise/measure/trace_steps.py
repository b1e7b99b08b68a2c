"""Where one training step ends and the next begins, on the device."""

import re
from bisect import bisect_right
from dataclasses import dataclass

from shardwise.measure.trace_records import RankTrace, Work
from shardwise.units import Seconds

STEP_MARK = re.compile(r"^ProfilerStep#(\d+)")
OPTIMIZER_MARK = re.compile(r"^Optimizer\.step")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepWindow:
    """One step of one rank."""

    name: str
    start_s: Seconds
    """When the first work that was launched in the step began."""
    end_s: Seconds
    """When the first work of the next step began; for the last step, when its last work ended."""
    works: tuple[Work, ...]
    next_launch_s: Seconds | None
    """When the host launched what ends the step; ``None`` for the last one."""

    @property
    def duration_s(self) -> Seconds:
        """Time from start to end of the step."""
        return self.end_s - self.start_s


def step_windows(trace: RankTrace) -> tuple[StepWindow, ...]:
    """The steps of a trace.

    Work belongs to the step in which the host launched it, because the host runs ahead of the device. The profiler's
    own marks are used; without them one step ends with each ``Optimizer.step``; without these the trace is one step.
    """
    if trace.step_s is not None:
        whole = StepWindow(name="the step", start_s=0.0, end_s=trace.step_s, works=trace.works, next_launch_s=None)
        return (whole,)
    bounds, names = _host_bounds(trace)
    if not bounds:
        return (_window("the whole trace", trace.works, following=()),)
    parts: list[list[Work]] = [[] for _ in names]
    launch_of_stream: dict[int, float] = {}
    for work in trace.works:
        moment = work.launch_s if work.launch_s is not None else launch_of_stream.get(work.stream, work.start_s)
        launch_of_stream[work.stream] = moment
        index = bisect_right(bounds, moment) - 1
        if 0 <= index < len(parts):
            parts[index].append(work)
    kept = [(name, tuple(part)) for name, part in zip(names, parts, strict=True) if part]
    following = [*(part for _, part in kept[1:]), ()]
    return tuple(_window(name, part, following=after) for (name, part), after in zip(kept, following, strict=True))


def _host_bounds(trace: RankTrace) -> tuple[list[float], list[str]]:
    """Begin of every step on the host, the end of the last one, and the steps' names."""
    marks = [mark for mark in trace.marks if STEP_MARK.match(mark.name)]
    if marks:
        return [*(mark.start_s for mark in marks), marks[-1].end_s], [mark.name for mark in marks]
    ends = [mark.end_s for mark in trace.marks if OPTIMIZER_MARK.match(mark.name)]
    if not ends:
        return [], []
    return [float("-inf"), *ends], [f"step {index}" for index in range(len(ends))]


def _window(name: str, works: tuple[Work, ...], *, following: tuple[Work, ...]) -> StepWindow:
    first = following[0] if following else None
    return StepWindow(
        name=name,
        start_s=works[0].start_s,
        end_s=max(work.end_s for work in works) if first is None else first.start_s,
        works=works,
        next_launch_s=None if first is None else first.launch_s,
    )

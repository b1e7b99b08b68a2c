"""How far the measured times of runs can be told from what else the machine was doing."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import median

from shardwise.course.labs.quantities import STEP, number, part
from shardwise.course.labs.trial import Outcome, Quantity

WARM_UP_STEPS = 3
"""Left out, as in the measured median (``train/measuring.py``)."""
FEWEST_STEPS = 3
"""The fewest steps whose spread tells whether a run was steady."""
UNSTEADY_RATIO = 1.5
"""The ratio of the slowest step to the fastest above which something else is at work."""
FULL_FRACTION = 0.97
"""The share of a GPU's memory above which steps wait for it (8B under DDP on two H200: 1.13 s instead of 0.48 s)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedRatio:
    """Step times of one run over step times of another: the ratio of medians, and its range over single steps."""

    middle_ratio: float
    low_ratio: float
    """The fastest step of the first run over the slowest step of the second."""
    high_ratio: float
    runs: tuple[Outcome, Outcome]

    def through(self, change: Callable[[float], float]) -> "TimedRatio":
        """The range of another amount that grows with the ratio."""
        return replace(
            self,
            middle_ratio=change(self.middle_ratio),
            low_ratio=change(self.low_ratio),
            high_ratio=change(self.high_ratio),
        )


def timed_ratio(quantity: Quantity, over: Outcome | None, under: Outcome | None) -> TimedRatio | None:
    """A measured time, or speed, over another; ``None`` when a run is missing."""
    if over is None or under is None:
        return None
    upper, lower = quantity.measured(over), quantity.measured(under)
    if upper is None or not lower:
        return None
    first, second = (over, under) if quantity is STEP else (under, over)  # a speed is one over a time
    (first_low, first_high), (second_low, second_high) = _range(first), _range(second)
    return TimedRatio(
        middle_ratio=upper / lower,
        low_ratio=upper / lower * first_low / second_high,
        high_ratio=upper / lower * first_high / second_low,
        runs=(over, under),
    )


def doubt_about(runs: tuple[Outcome, ...]) -> str:
    """Why the times of runs cannot be compared; empty where they can."""
    for run in runs:
        count = len(_steady_s(run))
        if count < FEWEST_STEPS:
            return (
                f"'{run.trial.name}' has {count} step{'' if count == 1 else 's'} behind the warm-up that the profiler "
                f"did not look into, too few to see whether they differ; {FEWEST_STEPS - count} more --steps tell more"
            )
        if unsteady_ratio(run) > UNSTEADY_RATIO:
            return (
                f"steps of '{run.trial.name}' differ by {unsteady_ratio(run):.1f} times, so something else works on "
                "this machine; run the lab again"
            )
        if _filled_fraction(run) > FULL_FRACTION:
            return (
                f"'{run.trial.name}' filled {_filled_fraction(run):.0%} of the GPU, where its allocator frees memory "
                "and asks for it over again; a smaller model tells"
            )
        if run.is_crowded:
            return f"{run.plan.layout.world_size} processes share fewer cores; a machine with more of them tells"
    return ""


def _filled_fraction(outcome: Outcome) -> float:
    """Share of its GPU's memory that a rank's allocator reserved; 0 where nothing was reserved."""
    reserved = number(outcome.measurement, "memory", "peak_reserved_bytes") or 0.0
    return reserved / outcome.plan.cluster.gpu.memory_bytes


def unsteady_ratio(outcome: Outcome) -> float:
    """The slowest over the fastest of the steps that the median is of; 1 where there are none."""
    seconds = _steady_s(outcome)
    return max(seconds) / min(seconds) if seconds and min(seconds) > 0 else 1.0


def _range(outcome: Outcome) -> tuple[float, float]:
    """The fastest and the slowest step over the median one."""
    seconds = _steady_s(outcome)
    middle = median(seconds) if seconds else 0.0
    return (min(seconds) / middle, max(seconds) / middle) if middle > 0 else (1.0, 1.0)


def _steady_s(outcome: Outcome) -> tuple[float, ...]:
    """Seconds of the steps behind the warm-up that the profiler did not look into."""
    steps, samples = part(outcome.measurement, "steps"), part(outcome.measurement, "time", "samples")
    looked_into = {number(sample, "step") for sample in samples} if isinstance(samples, list) else set()
    later = steps[WARM_UP_STEPS:] if isinstance(steps, list) else []
    return tuple(number(step, "step_s") or 0.0 for step in later if number(step, "step") not in looked_into)

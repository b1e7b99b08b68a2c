"""Records of step-time validation: a measured run with the plan that repeats it."""

from dataclasses import dataclass

from shardwise.plan import Plan
from shardwise.units import Seconds
from shardwise.validate.records import UnusedRow


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedRun:
    """One published rate of a run that states enough to be predicted."""

    id: str
    family: str
    plan: Plan
    measured_s: Seconds
    """Wall time of one optimizer step of the plan, from the printed step time or token rate."""
    figure: str
    """What the source prints: ``step time``, ``tokens/s`` or ``TFLOP/s`` under its own formula."""
    sweep: str
    """Source table, model and machines; rows with the same sweep are ranked against each other."""
    gaps: tuple[str, ...]
    """What the run did and a plan cannot say. Such rows are predicted and shown apart, never counted as evidence."""
    assumptions: tuple[str, ...]
    """What the source does not state and was taken from its code or defaults, in sentences."""
    variant: str
    """What else tells two runs of one plan apart, such as the recipe of an fp8 run."""
    source: str
    date: str

    @property
    def is_faithful(self) -> bool:
        """Whether the plan says everything that is known to matter about the run."""
        return not self.gaps


TimedConversion = TimedRun | UnusedRow
"""What becomes of a row: the run with its plan, or the reason it cannot be repeated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedRuns:
    """What the shipped throughput table holds: runs to predict, and rows left out."""

    runs: tuple[TimedRun, ...]
    unused: tuple[UnusedRow, ...]

"""Records of validation: a published run with the plan that repeats it, and rows that no plan repeats."""

from dataclasses import dataclass
from typing import Literal

from shardwise.plan import Plan
from shardwise.units import Bytes, Seconds

Scope = Literal["allocated", "reserved", "device", "unknown"]
"""What the source's figure counts: the framework's allocations, its arena, the whole device, or it does not say."""

Outcome = Literal["fits", "oom"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRun:
    """One published reading of a run that states enough to be predicted."""

    id: str
    family: str
    plan: Plan
    quantity: str = "peak_memory"
    measured_low_bytes: Bytes | None
    """Lower edge of what the printed figure can mean; ``None`` when only the outcome was published."""
    measured_high_bytes: Bytes | None
    """Upper edge: above the lower one where "GB" may be 1e9 bytes or GiB, or the figure is rounded."""
    scope: Scope
    stage: int | None = None
    """Pipeline stage the figure belongs to; ``None`` for the largest over all ranks."""
    outcome: Outcome
    decides_outcome: bool
    """Whether the row counts once for fit or out-of-memory; further readings of the same run do not."""
    assumptions: tuple[str, ...]
    """What the source does not state and was taken from its code or defaults, in sentences."""
    source: str
    date: str
    split: str
    """``dev`` for rows that the source table marks so; empty otherwise."""
    num_repeats: int = 1
    """Rows of the same family with the same plan but for the number of micro-batches, and the same reading."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class UnusedRow:
    """A shipped row that no plan repeats, and why."""

    id: str
    family: str
    reason: str

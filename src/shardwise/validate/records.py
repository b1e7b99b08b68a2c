"""Records of validation: a measured run with the plan that repeats it, and rows that cannot be repeated."""

from dataclasses import dataclass
from typing import Literal

from shardwise.plan import Plan
from shardwise.units import Bytes

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
class UnusedRow:
    """A shipped row that no plan repeats, and why."""

    id: str
    family: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SetupFact:
    """One fact about a family's setup that its rows omit and its source states."""

    family: str
    fact: str
    source: str
    date: str

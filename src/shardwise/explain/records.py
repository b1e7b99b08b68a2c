"""Records of an explanation: findings in plain words with their numbers, and changes verified by predicting again."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from shardwise.claims import Claim
from shardwise.plan import Plan
from shardwise.prediction import VERDICTS, Fit, Prediction
from shardwise.rules import Changes
from shardwise.rules.changes import changes_text
from shardwise.search.edits import HARDWARE
from shardwise.units import Bytes, Seconds, format_count, format_gb, format_gib, format_seconds

__all__ = [
    "FASTER_RATIO",
    "Explanation",
    "Finding",
    "Quantity",
    "QuantityUnit",
    "Source",
    "Topic",
    "VerifiedChange",
]

Topic = Literal[
    "verdict",
    "memory",
    "time",
    "headroom",
    "change",
    "world-size",
    "strategy",
    "checklist",
    "pitfall",
    "communication",
    "convention",
    "allocation",
    "out-of-memory",
    "caution",
]
FASTER_RATIO = 0.99
"""A change has to win a per cent to be worth a line."""
MAX_DIGITS = 1000
"""Numbers below it that are no whole ones have three digits: no prediction knows more."""
QuantityUnit = Literal["bytes", "traffic_bytes", "s", "fraction", "count", "usd", "ratio", "flop_per_s", "bytes_per_s"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The plan and the field of its prediction that a number is."""

    plan: Plan | None
    """``None`` for the plan that the whole explanation is about."""
    field: str
    """A path in ``predict --json``, such as ``memory.needed_bytes``; sums and products of paths are written out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """One number of a finding, in a base unit."""

    name: str
    value: float
    unit: QuantityUnit
    source: Source | None = None
    """``None`` for what is given, counted or read from a message, and is no prediction."""
    against: Source | None = None
    """What ``source`` is divided by where the number is a ratio or a fraction, and what is taken from it otherwise."""

    @property
    def text(self) -> str:
        """The number as people write it: GiB for memory, GB for traffic, per cent for fractions."""
        return _QUANTITY_TEXT[self.unit](self.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is so, the numbers that show it, the reason, and what to do about it."""

    topic: Topic
    claim: str
    """A sentence with the decisive numbers in it."""
    numbers: tuple[Quantity, ...] = ()
    because: str = ""
    suggestion: str = ""
    """Empty when there is nothing to do."""
    judged: Claim | None = None
    """A sentence often said about it, with the verdict; ``None`` where the finding is about no such sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedChange:
    """An edit of a plan together with what the edited plan was predicted to need."""

    changes: Changes
    """Fields to type into the plan's file, or into the cluster's description where it is other hardware."""
    cost: str
    """The edit's cost in words: more compute, more communication, slower steps, more money, other numerics."""
    effort: int
    """From ``FLAG``, the smallest, to ``HARDWARE``."""
    plan: Plan
    fit: Fit
    """The verdict by the memory band of the edited plan."""
    device_used_bytes: Bytes
    """Bytes used with the allocator's cache, at most what the device has."""
    needed_bytes: Bytes
    """Bytes that the edited plan cannot do without, the figure that is compared with the capacity."""
    saved_bytes: Bytes
    """How much less than the original plan's ``needed_bytes`` the edited plan needs; negative when it needs more."""
    host_saved_bytes: Bytes = 0
    """How much less host memory the edited plan needs on a node."""
    step_s: Seconds
    step_ratio: float
    """Step time of the edited plan over that of the original plan."""

    @property
    def edit(self) -> str:
        """The edit as it is typed, such as ``recompute=full`` or ``num_nodes=16``."""
        return changes_text(self.changes)

    @property
    def fits(self) -> bool:
        """Whether the edited plan fits as predicted, be it at the edge."""
        return self.fit != "does not fit"

    @property
    def trains_adapters(self) -> bool:
        """Whether the change trains adapters instead of every weight."""
        return "adapter" in dict(self.changes)

    @property
    def is_borderline(self) -> bool:
        """Whether the edited plan may not fit although it is predicted to."""
        return self.fit == "at the edge"


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Everything ``shardwise explain`` has to say about one plan."""

    plan: Plan
    prediction: Prediction
    findings: tuple[Finding, ...]
    changes: tuple[VerifiedChange, ...]
    """Each was predicted again. The smallest comes first where the plan does not fit safely, else the largest gain."""
    best: VerifiedChange | None = None
    """The plan that ``plan`` recommends for the same question, without changes where it is this one; ``None`` where
    nothing fits, and under the textbook convention."""

    @property
    def first_change(self) -> VerifiedChange | None:
        """The change to try first: one that fits, where there is any."""
        return next((change for change in self.changes if change.fits), next(iter(self.changes), None))

    @property
    def fastest_change(self) -> VerifiedChange | None:
        """The fastest change that fits safely on the same GPUs and trains every weight, where it is clearly faster than
        the first one.
        """
        first = self.first_change
        found = [one for one in self.changes if one.fit == "fits" and one.effort < HARDWARE and not one.trains_adapters]
        fastest = min(found, key=lambda one: one.step_ratio, default=None)
        if first is None or fastest is None or fastest.step_ratio >= FASTER_RATIO * first.step_ratio:
            return None
        return fastest

    @property
    def is_best_better(self) -> bool:
        """Whether the recommended plan is another one, and fits more safely than the plan, or as safely and faster."""
        best = self.best
        if best is None or not best.changes:
            return False
        unsafe, now_unsafe = VERDICTS.index(best.fit), VERDICTS.index(self.prediction.fit)
        return unsafe < now_unsafe or (unsafe == now_unsafe and best.step_ratio < FASTER_RATIO)

    @property
    def fits_safely(self) -> bool:
        """Whether the plan fits by the whole band of its memory."""
        return self.prediction.fit == "fits"

    @property
    def advised(self) -> VerifiedChange | None:
        """The first remedy of a plan that may not fit; of one that fits the recommended plan, unless one change that
        fits safely gains nearly as much."""
        first, best = self.first_change, self.best
        if best is None or not self.is_best_better:
            return first
        if first is not None and first.fit == "fits" and not self.fits_safely:
            return first
        is_as_good = first is not None and first.fit == "fits" and first.step_ratio * FASTER_RATIO <= best.step_ratio
        return first if is_as_good else best


def _seconds_text(value: float) -> str:
    return f"-{format_seconds(-value)}" if value < 0 else format_seconds(value)


def _count_text(value: float) -> str:
    if abs(value) < MAX_DIGITS and not float(value).is_integer():
        return f"{value:.3g}"
    return f"{value:,.0f}" if abs(value) < 1e6 and float(value).is_integer() else format_count(value)


def _usd_text(value: float) -> str:
    return f"${value:,.2f}" if abs(value) < 1000 else f"${value:,.0f}"


_QUANTITY_TEXT: dict[QuantityUnit, Callable[[float], str]] = {
    "bytes": format_gib,
    "traffic_bytes": format_gb,
    "s": _seconds_text,
    "fraction": lambda value: f"{value:.1%}",
    "count": _count_text,
    "usd": _usd_text,
    "ratio": lambda value: f"{value:.2f}x",
    "flop_per_s": lambda value: f"{value / 1e12:.1f} TFLOP/s",
    "bytes_per_s": lambda value: f"{value / 1e9:.1f} GB/s",
}

"""Bounds a user sets on the axes of a search, and how ``--tp 8``, ``--pp 1..8`` and ``--dp-shard ..64`` are read."""

import re
from dataclasses import dataclass, fields

from shardwise.errors import LayoutError
from shardwise.layout import ZeroStage
from shardwise.recipe import Offload, Precision, Recompute
from shardwise.rules.refusal import Changes, Value
from shardwise.schedules.table import SCHEDULE_KINDS, Schedule

__all__ = ["IntRange", "SearchBounds", "parse_counts", "parse_range"]

MAX_DEGREE = 10_000_000
NO_AXES = ("precision", "max_gpus", "deadline_days", "budget_usd", "max_plans", "max_predictions")
"""Fields that limit no axis of a layout or its recipe; several number formats are more than one question."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IntRange:
    """Allowed values of an axis: an interval, or a list of values."""

    low: int
    high: int
    values: tuple[int, ...] = ()
    """When given, only these; ``low`` and ``high`` are then their ends."""

    def allows(self, value: int) -> bool:
        """Whether the axis may have this value."""
        return value in self.values if self.values else self.low <= value <= self.high

    @property
    def pinned(self) -> int | None:
        """The value when only one is allowed."""
        return self.low if self.low == self.high else None


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchBounds:
    """Limits of the space; ``None`` leaves an axis free."""

    tp: IntRange | None = None
    cp: IntRange | None = None
    pp: IntRange | None = None
    vpp: IntRange | None = None
    ep: IntRange | None = None
    expert_tp: IntRange | None = None
    dp_replicate: IntRange | None = None
    dp_shard: IntRange | None = None
    micro_batch_size: IntRange | None = None
    stage_layers: tuple[int, ...] | None = None
    """Blocks of each pipeline stage, which pins ``pp`` to their number; ``None`` for an even spread and, of the fastest
    pipelines, spreads with fewer blocks beside the head."""
    zero_stage: tuple[ZeroStage, ...] | None = None
    schedule: tuple[Schedule, ...] | None = None
    recompute: tuple[Recompute, ...] | None = None
    sequence_parallel: bool | None = None
    reshard_after_forward: bool | None = None
    offload: tuple[Offload, ...] | None = None
    activation_offload: bool | None = None
    """Whether saved activations move to the host; ``None`` leaves it free, or on when the recipe turns it on."""
    precision: tuple[Precision, ...] | None = None
    """Number formats that may be used; ``None`` for the recipe's own."""
    max_gpus: int | None = None
    """The most GPUs that may be used: as many whole nodes of the cluster as hold no more."""
    deadline_days: float | None = None
    """The run has to end within so many days; one that is not positive lies in the past."""
    budget_usd: float | None = None
    """The run may cost so many dollars."""
    max_plans: int = 10
    """Ranked plans in the answer."""
    max_predictions: int = 14
    """Layouts that are predicted in full; the rest are compared by closed forms."""

    def __repr__(self) -> str:
        """The limits that are set."""
        plain = [one for one in fields(self) if getattr(self, one.name) != one.default]
        return f"SearchBounds({', '.join(f'{one.name}={getattr(self, one.name)!r}' for one in plain)})"

    @property
    def has_targets(self) -> bool:
        """Whether the whole run has a deadline or a budget."""
        return self.deadline_days is not None or self.budget_usd is not None

    @property
    def needs_pipeline(self) -> bool:
        """Whether chunks or schedules are asked for that only a pipeline of several stages has."""
        has_chunks = self.vpp is not None and self.vpp.low > 1
        return has_chunks or (
            self.schedule is not None and not any(SCHEDULE_KINDS[name].is_plain for name in self.schedule)
        )

    @property
    def bounded_axes(self) -> tuple[str, ...]:
        """Names of the fields of layout and recipe that are pinned or limited."""
        names = (field.name for field in fields(self) if field.name not in NO_AXES)
        return tuple(name for name in names if getattr(self, name) is not None)

    def without(self, *names: str) -> "SearchBounds":
        """These bounds without those on some axes."""
        kept = {field.name: getattr(self, field.name) for field in fields(self) if field.name not in names}
        return SearchBounds(**kept)

    def allows(self, changes: Changes) -> bool:
        """Whether every axis that is changed keeps its bound."""
        bounded = self.bounded_axes
        return all(self._allows(name, value) for name, value in changes if name in bounded)

    def _allows(self, name: str, value: Value) -> bool:
        limit = getattr(self, name)
        if isinstance(limit, IntRange):
            return isinstance(value, int) and limit.allows(value)
        if name == "stage_layers" or isinstance(limit, bool):
            return bool(value == limit)
        return value in limit


def parse_range(text: str, *, axis: str) -> IntRange:
    """The allowed values written as ``8``, ``1..8``, ``..8``, ``2..`` or ``1,2,4``.

    >>> parse_range("1..8", axis="pp").allows(4)
    True
    >>> parse_range("1,2,4", axis="tp").allows(3)
    False
    >>> parse_range("..64", axis="dp_shard").allows(64), parse_range("2..", axis="pp").allows(1)
    (True, False)
    """
    compact = text.replace(" ", "")
    interval = re.fullmatch(r"(\d{1,8})?\.\.(\d{1,8})?", compact) or re.fullmatch(r"(\d{1,8})-(\d{1,8})", compact)
    if interval and (interval.group(1) or interval.group(2)):
        low, high = int(interval.group(1) or 1), int(interval.group(2) or MAX_DEGREE)
        if low > high:
            raise LayoutError(
                f"{axis}={text[:40]} starts at {low}, which is larger than its end, {high}",
                code="search-bounds",
                fix=f"write the smaller number first: {axis} as {high}..{low}",
            )
        if 1 <= low <= high <= MAX_DEGREE:
            return IntRange(low=low, high=high)
    elif re.fullmatch(r"\d{1,8}(,\d{1,8})*", compact):
        values = tuple(sorted({int(value) for value in compact.split(",")}))
        if values[0] >= 1 and values[-1] <= MAX_DEGREE:
            return IntRange(low=values[0], high=values[-1], values=values)
    noun = "number of GPUs" if axis == "gpus" else "degree"
    raise LayoutError(
        f"{axis}={text[:40]!r} is no {noun}, interval or list of them",
        code="search-bounds",
        fix=f"write {axis} as 8, as 1..8, as ..8, as 2.. or as 1,2,4",
    )


def parse_counts(text: str | None, *, axis: str) -> tuple[int, ...] | None:
    """Counts in their order, written as ``9,8,8,7``; ``None`` for nothing.

    >>> parse_counts("9,8,8,7", axis="stage_layers")
    (9, 8, 8, 7)

    Raises:
        LayoutError: something else is written.
    """
    if text is None:
        return None
    compact = text.replace(" ", "")
    counts = tuple(int(count) for count in compact.split(",")) if re.fullmatch(r"\d{1,6}(,\d{1,6})*", compact) else ()
    if not counts or min(counts) < 1:
        raise LayoutError(
            f"{axis}={text[:40]!r} is not a list of counts",
            code="search-bounds",
            fix=f"write {axis} as 9,8,8,7, one count a stage",
        )
    return counts

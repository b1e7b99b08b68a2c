"""What a picture of a front shows, whether it is drawn in characters or as SVG: points, marks and two axes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import log

from shardwise.render.names import cluster_text, degrees_text
from shardwise.search import RankedPlan, SearchResult, SweepResult, SweepRow
from shardwise.units import format_gib, format_seconds, format_usd

LOG_RATIO = 8.0
"""Values that span more than this are drawn on a logarithmic axis."""
OTHER_MARK = "o"
FAR_RATIO = 1.5
"""Plans of the front this many times slower than the slowest ranked one are told, not drawn: they would press all
others together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontPoint:
    """One plan: where it stands, the character that marks it, and what its tooltip says."""

    x: float
    y: float
    mark: str
    label: str
    is_on_front: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontAxis:
    """A name and the ends of what it shows."""

    name: str
    low: float
    high: float
    write: Callable[[float], str]

    @property
    def is_log(self) -> bool:
        """Whether equal distances are equal ratios."""
        return self.low > 0 and self.high > LOG_RATIO * self.low

    def share(self, value: float) -> float:
        """Where a value lies between the ends, from 0 to 1."""
        if self.high <= self.low:
            return 0.5
        if self.is_log:
            return log(value / self.low) / log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontPicture:
    """Everything that is drawn."""

    title: str
    x: FrontAxis
    y: FrontAxis
    points: tuple[FrontPoint, ...]
    note: str


def search_front(result: SearchResult) -> FrontPicture | None:
    """Time against memory of the ranked plans and the front; ``None`` when there is nothing to compare."""
    ranked = list(result.plans)
    unranked = [found for found in result.pareto if all(found.plan != known.plan for known in ranked)]
    slowest_s = FAR_RATIO * max((found.prediction.time.step_s for found in ranked), default=0.0)
    others = [found for found in unranked if found.prediction.time.step_s <= slowest_s]
    points = tuple(
        FrontPoint(
            x=found.prediction.time.step_s,
            y=float(found.prediction.memory.needed_bytes),
            mark=_rank_mark(found) if found in ranked else OTHER_MARK,
            label=_plan_label(found),
            is_on_front=any(found.plan == front.plan for front in result.pareto),
        )
        for found in (*ranked, *others)
    )
    if len(points) < 2:
        return None
    return FrontPicture(
        title="Time against memory: the front and the ranked plans",
        x=_axis("step", [point.x for point in points], format_seconds),
        y=_axis("needed per GPU", [point.y for point in points], format_gib),
        points=points,
        note=f"numbers are ranks, {OTHER_MARK} other plans of the front; on one cluster dollars go with time"
        + _far_text(unranked, shown=others),
    )


def _far_text(unranked: Sequence[RankedPlan], *, shown: Sequence[RankedPlan]) -> str:
    far = [found for found in unranked if found not in shown]
    if not far:
        return ""
    smallest = min(far, key=lambda found: found.prediction.memory.needed_bytes)
    needed, step = format_gib(smallest.prediction.memory.needed_bytes), format_seconds(smallest.prediction.time.step_s)
    return f"; further right the front reaches {needed} at {step}"


def sweep_front(result: SweepResult) -> FrontPicture | None:
    """Time against dollars per token over clusters; ``None`` when fewer than two have a price and a plan, or all
    cost nothing."""
    rows = [row for row in result.rows if row.best is not None and row.usd_per_million_tokens is not None]
    if len(rows) < 2 or not any(row.usd_per_million_tokens for row in rows):
        return None
    types = list(dict.fromkeys(row.question.cluster.gpu.id for row in rows))
    points = tuple(
        FrontPoint(
            x=row.best.prediction.time.step_s,
            y=row.usd_per_million_tokens,
            mark=chr(ord("A") + types.index(row.question.cluster.gpu.id) % 26),
            label=_row_label(row),
            is_on_front=row.is_on_front,
        )
        for row in rows
        if row.best is not None and row.usd_per_million_tokens is not None
    )
    marks = ", ".join(f"{chr(ord('A') + index % 26)} {name}" for index, name in enumerate(types))
    return FrontPicture(
        title="Time against cost: every cluster, the front over time and cost",
        x=_axis("step", [point.x for point in points], format_seconds),
        y=_axis("per million tokens", [point.y for point in points], _usd_text),
        points=points,
        note=f"{marks}; fewer GPUs to the right",
    )


def _usd_text(amount_usd: float) -> str:
    """Dollars with three digits below a thousand, so that the ends of a narrow axis differ."""
    return f"${amount_usd:.3g}" if 0 < abs(amount_usd) < 1000 else format_usd(amount_usd)


def _axis(name: str, values: Sequence[float], write: Callable[[float], str]) -> FrontAxis:
    return FrontAxis(name=name, low=min(values), high=max(values), write=write)


def _rank_mark(found: RankedPlan) -> str:
    return str(found.rank) if found.rank < 10 else "+"


def _plan_label(found: RankedPlan) -> str:
    return f"{degrees_text(found.plan.layout)}, recompute {found.plan.recipe.recompute}"


def _row_label(row: SweepRow) -> str:
    layout = degrees_text(row.best.plan.layout) if row.best is not None else ""
    return f"{cluster_text(row.question.cluster)}: {layout}"

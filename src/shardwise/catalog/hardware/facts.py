"""Published figures on failures, recovery and cost, and what the source keys of all tables stand for."""

from dataclasses import dataclass
from functools import cache

from shardwise.catalog.hardware.gpus import confidence_of
from shardwise.catalog.hardware.tables import number_or_none, read_table
from shardwise.cluster import Confidence


@dataclass(frozen=True, slots=True, kw_only=True)
class ReliabilityFact:
    """One published figure on failures, recovery, checkpoints or storage."""

    category: str
    system: str
    num_gpus: int
    metric: str
    text: str
    """A number or a formula, as written."""
    unit: str
    source: str
    date: str
    confidence: Confidence
    notes: str

    @property
    def value(self) -> float | None:
        """The text as a number, in ``unit``; ``None`` for formulas."""
        return number_or_none(self.text)


@dataclass(frozen=True, slots=True, kw_only=True)
class CostFact:
    """One published training cost or purchase price."""

    kind: str
    who: str
    what: str
    gpu_id: str
    num_gpus: int
    usd_per_gpu_hour: float
    gpu_hours: float
    total_usd: float
    source: str
    date: str
    confidence: Confidence
    notes: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The publication or measurement that a source key stands for."""

    key: str
    reference: str
    date: str
    date_kind: str
    """published, snapshot, read (the source itself is undated) or not_before."""


@cache
def load_reliability() -> tuple[ReliabilityFact, ...]:
    """Every figure on failures, recovery, checkpoints and storage, in file order."""
    return tuple(
        ReliabilityFact(
            category=row.text("category"),
            system=row.text("system"),
            num_gpus=row.count("num_gpus"),
            metric=row.text("metric"),
            text=row.text("value"),
            unit=row.text("unit"),
            source=row.sources(),
            date=row.text("date"),
            confidence=confidence_of(row.text("confidence")),
            notes=row.text("notes"),
        )
        for row in read_table("reliability")
    )


@cache
def load_cost_facts() -> tuple[CostFact, ...]:
    """Every published training cost and purchase price, in file order; 0 where the source leaves a figure out."""
    return tuple(
        CostFact(
            kind=row.text("kind"),
            who=row.text("who"),
            what=row.text("what"),
            gpu_id=row.text("accelerator_id"),
            num_gpus=row.count("num_gpus"),
            usd_per_gpu_hour=row.number("usd_per_gpu_hour"),
            gpu_hours=row.number("gpu_hours"),
            total_usd=row.number("total_usd"),
            source=row.sources(),
            date=row.text("date"),
            confidence=confidence_of(row.text("confidence")),
            notes=row.text("notes"),
        )
        for row in read_table("cost_facts")
    )


@cache
def load_sources() -> tuple[Source, ...]:
    """Every source key with what it stands for."""
    return tuple(
        Source(
            key=row.text("key"),
            reference=row.text("reference"),
            date=row.text("date"),
            date_kind=row.text("date_kind"),
        )
        for row in read_table("sources")
    )

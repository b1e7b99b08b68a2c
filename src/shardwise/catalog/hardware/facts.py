"""What the source keys of all tables stand for."""

from dataclasses import dataclass
from functools import cache

from shardwise.catalog.hardware.tables import read_table


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The publication or measurement that a source key stands for."""

    key: str
    reference: str
    date: str
    date_kind: str
    """published, snapshot, read (the source itself is undated) or not_before."""


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

"""Collectives that were timed on this hardware, in base units.

Readings off a chart are marked ``low``. Nothing here is interpolated: that is the business of who predicts.
"""

from dataclasses import dataclass
from functools import cache

from shardwise.catalog.hardware.gpus import confidence_of
from shardwise.catalog.hardware.tables import TableRow, read_table
from shardwise.cluster import Confidence
from shardwise.units import GB_PER_S, GBIT_PER_S, MICROSECOND, Bytes, BytesPerSecond, Seconds

_TO_BYTES_PER_S = (("GB/s", GB_PER_S), ("Gb/s", GBIT_PER_S))


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveReading:
    """One timed collective, or one plateau read at large messages."""

    gpu_id: str
    """Empty when the source names only the link."""
    num_gpus: int
    """0 when the source does not say."""
    num_nodes: int
    operation: str
    """all_reduce, all_gather, reduce_scatter, all_to_all."""
    implementation: str
    interconnect: str
    message_bytes: Bytes
    """0 for a plateau: the figure is the peak at large messages."""
    bus_bandwidth_bytes_per_s: BytesPerSecond
    """NCCL's busbw; 0 where only the time was published."""
    duration_s: Seconds
    """0 for a plateau."""
    source: str
    date: str
    confidence: Confidence
    notes: str


@cache
def load_collective_readings() -> tuple[CollectiveReading, ...]:
    """Every timed collective, in file order."""
    return tuple(_collective(row) for row in read_table("achieved") if row.text("kind") == "collective")


def _collective(row: TableRow) -> CollectiveReading:
    is_rate = row.text("metric") == "busbw"
    return CollectiveReading(
        gpu_id=row.text("accelerator_id"),
        num_gpus=row.count("num_gpus"),
        num_nodes=row.count("num_nodes"),
        operation=row.text("operation"),
        implementation=row.text("implementation"),
        interconnect=row.text("interconnect"),
        message_bytes=row.count("message_bytes"),
        bus_bandwidth_bytes_per_s=_bytes_per_s(row) if is_rate else 0.0,
        duration_s=row.number("time_us") * MICROSECOND,
        source=row.sources(),
        date=row.text("date"),
        confidence=confidence_of(row.text("confidence")),
        notes=row.text("notes"),
    )


def _bytes_per_s(row: TableRow) -> BytesPerSecond:
    return row.number("value") * next(factor for unit, factor in _TO_BYTES_PER_S if unit == row.text("unit"))

"""What was measured on this hardware, in base units: collectives, matrix products, attention, copies.

Readings off a chart are marked ``low``. Nothing here is interpolated: that is the business of who predicts.
"""

from dataclasses import dataclass
from functools import cache

from shardwise.catalog.hardware.gpus import confidence_of
from shardwise.catalog.hardware.tables import TableRow, read_table
from shardwise.cluster import Confidence
from shardwise.units import GB_PER_S, GBIT_PER_S, MICROSECOND, TERA, Bytes, BytesPerSecond, FlopPerSecond, Seconds

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


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmReading:
    """One timed matrix product; 0 for dimensions the source leaves out."""

    gpu_id: str
    implementation: str
    dtype: str
    m: int
    n: int
    k: int
    achieved_flop_per_s: FlopPerSecond
    peak_fraction: float
    source: str
    date: str
    confidence: Confidence
    notes: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionReading:
    """One timed attention kernel."""

    gpu_id: str
    implementation: str
    dtype: str
    seq_len: int
    head_dim: int
    is_causal: bool
    direction: str
    """fwd, bwd or fwd+bwd."""
    achieved_flop_per_s: FlopPerSecond
    peak_fraction: float
    source: str
    date: str
    confidence: Confidence
    notes: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyReading:
    """One copy or stream: between GPUs, to the host, or inside device memory."""

    gpu_id: str
    kind: str
    """p2p or memory_bandwidth."""
    operation: str
    bandwidth_bytes_per_s: BytesPerSecond
    peak_fraction: float
    source: str
    date: str
    confidence: Confidence
    notes: str


@cache
def load_collective_readings() -> tuple[CollectiveReading, ...]:
    """Every timed collective, in file order."""
    return tuple(_collective(row) for row in _achieved("collective"))


@cache
def load_gemm_readings() -> tuple[GemmReading, ...]:
    """Every timed matrix product, in file order."""
    return tuple(
        GemmReading(
            gpu_id=row.text("accelerator_id"),
            implementation=row.text("implementation"),
            dtype=row.text("dtype"),
            m=row.count("m"),
            n=row.count("n"),
            k=row.count("k"),
            achieved_flop_per_s=row.number("value") * TERA,
            peak_fraction=row.number("fraction_of_peak"),
            source=row.sources(),
            date=row.text("date"),
            confidence=confidence_of(row.text("confidence")),
            notes=row.text("notes"),
        )
        for row in _achieved("gemm")
    )


@cache
def load_attention_readings() -> tuple[AttentionReading, ...]:
    """Every timed attention kernel, in file order."""
    return tuple(
        AttentionReading(
            gpu_id=row.text("accelerator_id"),
            implementation=row.text("implementation"),
            dtype=row.text("dtype"),
            seq_len=row.count("seq_len"),
            head_dim=row.count("head_dim"),
            is_causal=row.claim("causal"),
            direction=row.text("pass"),
            achieved_flop_per_s=row.number("value") * TERA,
            peak_fraction=row.number("fraction_of_peak"),
            source=row.sources(),
            date=row.text("date"),
            confidence=confidence_of(row.text("confidence")),
            notes=row.text("notes"),
        )
        for row in _achieved("attention")
    )


@cache
def load_copy_readings() -> tuple[CopyReading, ...]:
    """Every copy and stream, in file order."""
    return tuple(
        CopyReading(
            gpu_id=row.text("accelerator_id"),
            kind=row.text("kind"),
            operation=row.text("operation"),
            bandwidth_bytes_per_s=_bytes_per_s(row),
            peak_fraction=row.number("fraction_of_peak"),
            source=row.sources(),
            date=row.text("date"),
            confidence=confidence_of(row.text("confidence")),
            notes=row.text("notes"),
        )
        for row in (*_achieved("p2p"), *_achieved("memory_bandwidth"))
    )


def _achieved(kind: str) -> tuple[TableRow, ...]:
    return tuple(row for row in read_table("achieved") if row.text("kind") == kind)


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

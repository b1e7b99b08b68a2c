"""Curves fitted to the measured sweeps, each with the error it was fitted with and the range it was fitted on."""

from dataclasses import dataclass
from functools import cache

from shardwise.catalog.hardware.gpus import confidence_of
from shardwise.catalog.hardware.tables import read_table
from shardwise.cluster import Confidence
from shardwise.units import GB_PER_S, MICROSECOND, TERA, Bytes, BytesPerSecond, FlopPerSecond, Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveFit:
    """``time = alpha + bytes * factor / bandwidth``, least squares on the relative error of one sweep."""

    gpu_id: str
    num_gpus: int
    num_nodes: int
    operation: str
    implementation: str
    interconnect: str
    alpha_s: Seconds
    bus_bandwidth_bytes_per_s: BytesPerSecond
    measured_peak_bytes_per_s: BytesPerSecond
    half_peak_message_bytes: Bytes
    """Message at which half the measured peak is reached; 0 when the sweep starts above it."""
    smallest_message_bytes: Bytes
    largest_message_bytes: Bytes
    mean_relative_error_fraction: float
    max_relative_error_fraction: float
    source: str
    date: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelFit:
    """``achieved = limit * x / (x + half)`` with x a sequence length (attention) or K (matrix product)."""

    kind: str
    variable: str
    gpu_id: str
    implementation: str
    dtype: str
    head_dim: int
    is_causal: bool
    direction: str
    limit_flop_per_s: FlopPerSecond
    num_x_at_half_rate: float
    min_x: int
    max_x: int
    mean_relative_error_fraction: float
    max_relative_error_fraction: float
    source: str
    date: str
    confidence: Confidence

    def flop_per_s_at(self, x: float) -> FlopPerSecond:
        """The fitted rate at ``x``; outside ``min_x`` to ``max_x`` it is an extrapolation."""
        return self.limit_flop_per_s * x / (x + self.num_x_at_half_rate)


@cache
def load_collective_fits() -> tuple[CollectiveFit, ...]:
    """Every latency and bandwidth fit of a sweep, in file order."""
    return tuple(
        CollectiveFit(
            gpu_id=row.text("accelerator_id"),
            num_gpus=row.count("num_gpus"),
            num_nodes=row.count("num_nodes"),
            operation=row.text("operation"),
            implementation=row.text("implementation"),
            interconnect=row.text("interconnect"),
            alpha_s=row.number("alpha_us") * MICROSECOND,
            bus_bandwidth_bytes_per_s=row.number("busbw_limit_gb_per_s") * GB_PER_S,
            measured_peak_bytes_per_s=row.number("busbw_peak_gb_per_s") * GB_PER_S,
            half_peak_message_bytes=row.count("bytes_at_half_peak"),
            smallest_message_bytes=row.count("bytes_min"),
            largest_message_bytes=row.count("bytes_max"),
            mean_relative_error_fraction=row.number("mean_abs_rel_err"),
            max_relative_error_fraction=row.number("max_abs_rel_err"),
            source=row.sources(),
            date=row.text("date"),
        )
        for row in read_table("comm_fits")
    )


@cache
def load_kernel_fits() -> tuple[KernelFit, ...]:
    """Every saturation fit of a kernel, in file order."""
    return tuple(
        KernelFit(
            kind=row.text("kind"),
            variable=row.text("variable"),
            gpu_id=row.text("accelerator_id"),
            implementation=row.text("implementation"),
            dtype=row.text("dtype"),
            head_dim=row.count("head_dim"),
            is_causal=row.claim("causal"),
            direction=row.text("pass"),
            limit_flop_per_s=row.number("limit_tflop_per_s") * TERA,
            num_x_at_half_rate=row.number("x_half"),
            min_x=row.count("x_min"),
            max_x=row.count("x_max"),
            mean_relative_error_fraction=row.number("mean_abs_rel_err"),
            max_relative_error_fraction=row.number("max_abs_rel_err"),
            source=row.sources(),
            date=row.text("date"),
            confidence=confidence_of(row.text("confidence")),
        )
        for row in read_table("kernel_fits")
    )

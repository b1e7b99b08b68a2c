"""A user's own GPU: a catalogue part with some figures replaced, or one described from nothing."""

from dataclasses import replace

from shardwise.catalog.hardware.gpus import DTYPES
from shardwise.catalog.hardware.request import GpuRequest, value_of
from shardwise.cluster import Gpu, Peak
from shardwise.errors import ClusterError
from shardwise.units import GB_PER_S, GIB, TERA

PCIE_4_X16_GB_PER_S = 31.5
"""The host link of a user's GPU when none is given; the cluster says so."""
ASSUMED_FLOP_PER_BYTE = 300.0
"""Peak over memory bandwidth of a user's GPU that states no bandwidth; the cluster says so. 281 to 315 on B200, H100,
GB200, TPU7x and MI355X; 207 in the median of the catalogue, whose older parts move more bytes per FLOP."""
LEAST_TDP_W = 10.0
"""Watts, below the power limit of every module that holds a model."""
ASSUMED_FP32_FLOP_PER_BYTE = 20.0
"""FLOP per byte that are assumed where only an fp32 peak is given; an H100 has 67 TFLOP/s over 3.35 TB/s."""


def own_gpu(own: GpuRequest, *, base: Gpu | None) -> Gpu:
    """The catalogue GPU ``base`` with the user's figures in place of its own; without a base, those figures alone.

    A part that is based on another keeps its id, under which kernels, runs and prices were recorded: a name is for the
    reader and changes no prediction.

    Raises:
        ClusterError: ``cluster-field`` when there is no base and a figure is missing that a plan cannot do without, or
            the power limit is below that of any part.
    """
    base = base or _blank_gpu(own)

    def given(key: str, unit: float, otherwise: float) -> float:
        value = value_of(own.settings, key)
        return otherwise if value is None else value * unit

    scale_up = given("scale_up_gb_per_s", GB_PER_S, base.scale_up_bandwidth_bytes_per_s)
    peer = base.peer_bandwidth_bytes_per_s if scale_up == base.scale_up_bandwidth_bytes_per_s else scale_up
    memory_gib = value_of(own.settings, "memory_gib")
    peaks = tuple((dtype, given(f"{dtype}_tflop_per_s", TERA, base.peak_flop_per_s(dtype))) for dtype in DTYPES)
    tdp_w = given("tdp_w", 1, base.tdp_w)
    if 0 < tdp_w < LEAST_TDP_W:
        raise ClusterError(
            f"tdp_w is {tdp_w:g}; no part that trains runs on less than {LEAST_TDP_W:g} W",
            code="cluster-field",
            fix="give the power limit of one GPU in watts, or leave tdp_w out",
        )
    unnamed_links = "fast links" if base.scale_up == "none" and scale_up else base.scale_up
    return replace(
        base,
        name=own.name or base.name,
        vendor=own.vendor or base.vendor,
        arch=own.arch or base.arch,
        memory_bytes=base.memory_bytes if memory_gib is None else round(memory_gib * GIB),
        memory_is_derived=base.memory_is_derived and memory_gib is None,
        nominal_memory_bytes=base.nominal_memory_bytes if memory_gib is None else 0,
        memory_note=base.memory_note if memory_gib is None else "user",
        memory_bandwidth_bytes_per_s=given("memory_bandwidth_gb_per_s", GB_PER_S, base.memory_bandwidth_bytes_per_s),
        peaks=tuple(Peak(dtype=dtype, flop_per_s=rate) for dtype, rate in peaks if rate),
        sm_count=round(given("sm_count", 1, base.sm_count)),
        tdp_w=tdp_w,
        scale_up=own.scale_up or unnamed_links,
        scale_up_bandwidth_bytes_per_s=scale_up,
        peer_bandwidth_bytes_per_s=given("peer_gb_per_s", GB_PER_S, peer),
        pcie_bandwidth_bytes_per_s=given("pcie_gb_per_s", GB_PER_S, base.pcie_bandwidth_bytes_per_s),
        source=f"user;{base.source}" if own.based_on else "user",
        confidence="user",
    )


def _blank_gpu(own: GpuRequest) -> Gpu:
    has_peak = any(value_of(own.settings, f"{dtype}_tflop_per_s") for dtype in ("bf16", "fp16", "fp32"))
    missing = [
        *([] if own.name else ["name"]),
        *([] if value_of(own.settings, "memory_gib") else ["memory_gib"]),
        *([] if has_peak else ["bf16_tflop_per_s"]),
    ]
    if missing:
        raise ClusterError(
            f"a GPU that is not based on a catalogue part also needs {', '.join(missing)}",
            code="cluster-field",
            fix=f'add {missing[0]} to the gpu table, or based_on = "h100-sxm"',
        )
    return Gpu(
        id=own.name,
        name=own.name,
        vendor="unknown",
        arch="unknown",
        memory_bytes=0,
        memory_is_derived=False,
        memory_bandwidth_bytes_per_s=_assumed_bandwidth_bytes_per_s(own),
        peaks=(),
        sm_count=0,
        tdp_w=0.0,
        scale_up="none",
        scale_up_bandwidth_bytes_per_s=0.0,
        peer_bandwidth_bytes_per_s=0.0,
        pcie_bandwidth_bytes_per_s=PCIE_4_X16_GB_PER_S * GB_PER_S,
        source="user",
        date="",
        confidence="user",
    )


def _assumed_bandwidth_bytes_per_s(own: GpuRequest) -> float:
    """Memory bandwidth of a part of today with the given peak; used only where no bandwidth is given."""
    narrow = value_of(own.settings, "bf16_tflop_per_s") or value_of(own.settings, "fp16_tflop_per_s")
    if narrow:
        return narrow * TERA / ASSUMED_FLOP_PER_BYTE
    return (value_of(own.settings, "fp32_tflop_per_s") or 0.0) * TERA / ASSUMED_FP32_FLOP_PER_BYTE

"""A user's own GPU: a catalogue part with some figures replaced, or one described from nothing."""

from dataclasses import replace

from shardwise.catalog.hardware.gpus import DTYPES
from shardwise.catalog.hardware.request import GpuRequest, value_of
from shardwise.cluster import Gpu, Peak
from shardwise.errors import ClusterError
from shardwise.units import GB_PER_S, GIB, TERA

PCIE_4_X16_GB_PER_S = 31.5
"""The host link of a user's GPU when none is given; the cluster says so."""


def own_gpu(own: GpuRequest, *, base: Gpu | None) -> Gpu:
    """The user's figures over those of ``base``, or over nothing.

    Raises:
        ClusterError: ``cluster-field`` when there is no base and a figure is missing that a plan cannot do without.
    """
    base = base or _blank_gpu(own)

    def given(key: str, unit: float, otherwise: float) -> float:
        value = value_of(own.settings, key)
        return otherwise if value is None else value * unit

    scale_up = given("scale_up_gb_per_s", GB_PER_S, base.scale_up_bandwidth_bytes_per_s)
    peer = base.peer_bandwidth_bytes_per_s if scale_up == base.scale_up_bandwidth_bytes_per_s else scale_up
    memory_gib = value_of(own.settings, "memory_gib")
    peaks = tuple((dtype, given(f"{dtype}_tflop_per_s", TERA, base.peak_flop_per_s(dtype))) for dtype in DTYPES)
    unnamed_links = "fast links" if base.scale_up == "none" and scale_up else base.scale_up
    return replace(
        base,
        id=own.name or base.id,
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
        tdp_w=given("tdp_w", 1, base.tdp_w),
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
        *(key for key in ("memory_gib", "memory_bandwidth_gb_per_s") if value_of(own.settings, key) is None),
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
        memory_bandwidth_bytes_per_s=0.0,
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

"""Accelerators: one record per device that a rank drives, in bytes, seconds and FLOP, dense and one-way."""

from dataclasses import dataclass
from functools import cache
from typing import get_args

from shardwise.catalog.hardware.tables import TableRow, read_table
from shardwise.cluster import Confidence, Dtype, Gpu, Peak
from shardwise.errors import ClusterError
from shardwise.units import GB, GB_PER_S, GIB, TERA

DTYPES: tuple[Dtype, ...] = get_args(Dtype)
_CONFIDENCES: tuple[Confidence, ...] = get_args(Confidence)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuEntry:
    """A part and what the catalogue needs to find it and to put it into a server."""

    gpu: Gpu
    marketing_gb: str
    family: str
    aliases: tuple[str, ...]
    num_devices: int
    """Devices the framework sees per physical part: 2 for MI250X."""
    usual_node_id: str
    """The reference server of the part; empty when the three fields below describe one instead."""
    num_usual_gpus: int
    num_usual_domain_gpus: int
    usual_network_id: str


def confidence_of(cell: str) -> Confidence:
    """The cell as one of the known words; anything else is ``low``."""
    return next((word for word in _CONFIDENCES if word == cell), "low")


@cache
def gpu_entries() -> tuple[GpuEntry, ...]:
    """Every accelerator with its finding data, in file order."""
    return tuple(_entry(row) for row in read_table("accelerators"))


def load_gpus() -> tuple[Gpu, ...]:
    """Every accelerator of the catalogue, in file order."""
    return tuple(entry.gpu for entry in gpu_entries())


@cache
def gpu_entry(gpu_id: str) -> GpuEntry:
    """The accelerator with exactly this id.

    Raises:
        ClusterError: ``cluster-unknown`` when there is none.
    """
    for entry in gpu_entries():
        if entry.gpu.id == gpu_id:
            return entry
    raise ClusterError(
        f"no accelerator with the id {gpu_id!r} in the catalogue",
        code="cluster-unknown",
        fix="list the ids with `shardwise catalog gpus`",
    )


def load_gpu(gpu_id: str) -> Gpu:
    """The accelerator with exactly this id.

    Raises:
        ClusterError: ``cluster-unknown`` when there is none.

    >>> load_gpu("h100-sxm").peak_flop_per_s("bf16")
    989500000000000.0
    """
    return gpu_entry(gpu_id).gpu


def _entry(row: TableRow) -> GpuEntry:
    return GpuEntry(
        gpu=_gpu(row),
        marketing_gb=row.text("memory_marketing_gb"),
        family=row.text("family"),
        aliases=row.names("aliases"),
        num_devices=row.count("devices_per_part"),
        usual_node_id=row.text("usual_node_id"),
        num_usual_gpus=row.count("usual_gpus_per_node"),
        num_usual_domain_gpus=row.count("usual_domain_gpus"),
        usual_network_id=row.text("usual_network_id"),
    )


def _gpu(row: TableRow) -> Gpu:
    devices = row.count("devices_per_part")
    scale_up_gb_per_s = row.number("scale_up_gb_per_s") / devices
    host_link_gb_per_s = row.number("c2c_gb_per_s") or row.number("pcie_gb_per_s") / devices
    return Gpu(
        id=row.text("id"),
        name=row.text("name") if devices == 1 else f"{row.text('name')} (one of its {devices} devices)",
        vendor=row.text("vendor"),
        arch=row.text("arch"),
        memory_bytes=round(row.number("torch_total_gib") * GIB),
        memory_is_derived=row.claim("torch_total_is_derived"),
        memory_bandwidth_bytes_per_s=row.number("memory_bandwidth_gb_per_s") / devices * GB_PER_S,
        peaks=_peaks(row, devices),
        sm_count=row.count("sm_count") // devices,
        tdp_w=row.number("tdp_w") / devices,
        scale_up=row.text("scale_up") or "none",
        scale_up_bandwidth_bytes_per_s=scale_up_gb_per_s * GB_PER_S,
        peer_bandwidth_bytes_per_s=row.number("peer_gb_per_s", scale_up_gb_per_s) * GB_PER_S,
        pcie_bandwidth_bytes_per_s=host_link_gb_per_s * GB_PER_S,
        source=row.sources(),
        date=row.text("date"),
        confidence=confidence_of(row.text("confidence")),
        notes=row.text("notes"),
        nominal_memory_bytes=round(row.number("memory_marketing_gb") / devices * GB),
        memory_note=row.text("torch_total_note"),
        form_factor=row.text("form_factor"),
        memory_type=row.text("memory_type"),
    )


def _peaks(row: TableRow, devices: int) -> tuple[Peak, ...]:
    rates = ((dtype, row.number(f"{dtype}_tflop_per_s")) for dtype in DTYPES)
    return tuple(Peak(dtype=dtype, flop_per_s=rate / devices * TERA) for dtype, rate in rates if rate)

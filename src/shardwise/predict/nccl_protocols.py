"""NCCL's protocols and the limits of each architecture, as its tuner states them (``src/graph/tuning.cc``)."""

from dataclasses import dataclass
from typing import Literal

from shardwise.units import BytesPerSecond

ProtocolName = Literal["LL", "LL128", "Simple"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Protocol:
    """One of NCCL's protocols: microseconds of a call and of a step, and the share of the bandwidth that it leaves."""

    name: ProtocolName
    ring_base_us: float
    tree_base_us: float
    ring_scale_up_us: float
    ring_pcie_us: float
    ring_network_us: float
    tree_scale_up_us: float
    tree_pcie_us: float
    tree_network_us: float
    ring_fraction: float
    host_tree_fraction: float
    tree_fraction: float
    tree_corrections: tuple[float, ...]
    """Share of the tree's bandwidth left at 64 B, 128 B, ... 512 MB (``treeCorrectionFactor``)."""


PROTOCOLS = (
    Protocol(
        name="LL",
        ring_base_us=6.6,
        tree_base_us=6.8,
        ring_scale_up_us=0.6,
        ring_pcie_us=1.0,
        ring_network_us=2.7,
        tree_scale_up_us=0.6,
        tree_pcie_us=1.0,
        tree_network_us=5.0,
        ring_fraction=0.5,
        host_tree_fraction=1 / 3.8,
        tree_fraction=1 / 3.8,
        tree_corrections=(
            *(1.0, 1.0, 1.0, 1.0, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5),
            *(0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.0, 1.0, 1.0, 1.0),
        ),
    ),
    Protocol(
        name="LL128",
        ring_base_us=14.0,
        tree_base_us=14.0,
        ring_scale_up_us=1.9,
        ring_pcie_us=2.5,
        ring_network_us=4.0,
        tree_scale_up_us=1.25,
        tree_pcie_us=1.9,
        tree_network_us=8.5,
        ring_fraction=0.92,
        host_tree_fraction=7 / 9,
        tree_fraction=120 / 128,
        tree_corrections=(
            *(1.0, 1.0, 1.0, 1.0, 1.0, 0.9, 0.8, 0.8, 0.8, 0.7, 0.6, 0.6),
            *(0.6, 0.6, 0.6, 0.6, 0.8, 0.9, 0.9, 0.9, 0.9, 1.0, 1.0, 1.0),
        ),
    ),
    Protocol(
        name="Simple",
        ring_base_us=8.4,
        tree_base_us=8.4,
        ring_scale_up_us=3.4,
        ring_pcie_us=5.7,
        ring_network_us=14.0,
        tree_scale_up_us=4.0,
        tree_pcie_us=4.0,
        tree_network_us=14.0,
        ring_fraction=1.0,
        host_tree_fraction=1.0,
        tree_fraction=1.0,
        tree_corrections=(
            *(0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.8, 0.7, 0.6, 0.6, 0.5),
            *(0.5, 0.5, 0.5, 0.6, 0.7, 0.8, 0.7, 0.7, 0.8, 0.9, 0.9, 0.9),
        ),
    ),
)
LL, LL128, SIMPLE = PROTOCOLS


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchLimits:
    """Most bytes per second that GPUs of one architecture move, on one, two and more hosts."""

    arch: str
    low_latency: tuple[BytesPerSecond, BytesPerSecond, BytesPerSecond]
    """Limit of the LL protocol; over several hosts NCCL looks it up by the CPU's vendor instead."""
    ring_ll128: tuple[BytesPerSecond, BytesPerSecond, BytesPerSecond]
    """Limit of one channel, as in the fields below."""
    tree_ll128: tuple[BytesPerSecond, BytesPerSecond, BytesPerSecond]
    tree_simple: tuple[BytesPerSecond, BytesPerSecond, BytesPerSecond]
    nvls_tree: tuple[BytesPerSecond, BytesPerSecond, BytesPerSecond]


ARCH_LIMITS = (
    ArchLimits(
        arch="Volta",
        low_latency=(39.0e9, 39.0e9, 20.4e9),
        ring_ll128=(20.0e9, 20.0e9, 20.0e9),
        tree_ll128=(20.0e9, 20.0e9, 20.0e9),
        tree_simple=(26.5e9, 18.5e9, 10.0e9),
        nvls_tree=(26.5e9, 18.5e9, 10.0e9),
    ),
    ArchLimits(
        arch="Ampere",
        low_latency=(87.7e9, 22.5e9, 19.0e9),
        ring_ll128=(20.0e9, 20.0e9, 20.0e9),
        tree_ll128=(20.0e9, 20.0e9, 20.0e9),
        tree_simple=(24.0e9, 23.6e9, 17.8e9),
        nvls_tree=(24.0e9, 23.6e9, 17.8e9),
    ),
    ArchLimits(
        arch="Hopper",
        low_latency=(141.0e9, 45.0e9, 35.0e9),
        ring_ll128=(36.7e9, 36.7e9, 36.7e9),
        tree_ll128=(36.7e9, 36.7e9, 29.0e9),
        tree_simple=(38.7e9, 41.4e9, 36.0e9),
        nvls_tree=(0.0, 57.7e9, 45.5e9),
    ),
    ArchLimits(
        arch="Blackwell",
        low_latency=(282.0e9, 90.0e9, 70.0e9),
        ring_ll128=(40.0e9, 40.0e9, 40.0e9),
        tree_ll128=(55.6e9, 31.67e9, 20.0e9),
        tree_simple=(70.0e9, 42.8e9, 24.0e9),
        nvls_tree=(0.0, 96.0e9, 80.0e9),
    ),
)
"""Same file: ``llMaxBws``, ``perChMaxRingLL128Bws``, ``perChMaxTreeLL128Bws``, ``perChMaxTreeBws`` and
``perChMaxNVLSTreeBws``."""


def arch_limits(arch: str) -> ArchLimits:
    """Limits of an architecture; unknown ones take Ampere's, the lowest of the current ones."""
    known = {limits.arch: limits for limits in ARCH_LIMITS}
    return next((limits for name, limits in known.items() if arch.startswith(name)), known["Ampere"])

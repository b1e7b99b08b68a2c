"""Time of collectives: NCCL's own latency constants, and link bandwidths with the share of them that is reached.

A group is placed first: how many of its ranks share a fast domain and how many domains it spans. Inside a domain
messages use each GPU's scale-up links; between domains each GPU uses its own NIC, and the ranks of one group in one
domain use theirs together (multi-rail). The two levels are pipelined, so the longer one counts; latency adds.
"""

from dataclasses import dataclass
from math import ceil, log2

from shardwise.cluster import Cluster, blocks_spanned
from shardwise.formulas.collective_volume import all_gather_factor, all_reduce_factor
from shardwise.step.inventory import Collective
from shardwise.units import MICROSECOND, BytesPerSecond, Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkFraction:
    """Share of a scale-up link's line rate that ring collectives reach."""

    link: str
    """The beginning of the node's scale-up type."""
    arch: str
    fraction: float
    in_switch_fraction: float = 0.0
    """All-reduce with in-switch reduction (NVLS), over the line rate; 0 where there is none."""


LINK_FRACTIONS = (
    # 8 x H200, 16 GiB: all-gather 361, all-reduce 367 without and 480 with NVLS, of 450 GB/s.
    LinkFraction(link="NVLink", arch="Hopper", fraction=0.81, in_switch_fraction=1.067),
    # 8 x B200: 682 without and 846 with NVLS, of 900 GB/s.
    LinkFraction(link="NVLink", arch="Blackwell", fraction=0.758, in_switch_fraction=0.94),
    # 8 x A100: all-reduce 235 of 300 GB/s; V100 122 of 150.
    LinkFraction(link="NVLink", arch="", fraction=0.783),
    # 8 x MI300X, 4 GiB: all-reduce 312.9 of 448 GB/s.
    LinkFraction(link="xGMI", arch="", fraction=0.698),
    # 8 GPUs on PCIe 4: all-reduce 24 of 31.5 GB/s.
    LinkFraction(link="PCIe", arch="", fraction=0.762),
)
"""Plateaus of single-node sweeps (``catalog/hardware/data/achieved.csv`` and ``networks.csv``)."""
DEFAULT_LINK_FRACTION = 0.75
"""About the lowest plateau published for a scale-up link."""
DEFAULT_NETWORK_FRACTION = 0.85
"""Fabrics without a reading: EFA reaches 0.85 of its line rate, InfiniBand and RoCE 0.96 per NIC."""
NVLS_MIN_GPUS = 5
"""NCCL does not choose in-switch reduction for 4 GPUs on H200, nor for 4 or 5 on B200."""
ALL_TO_ALL_FRACTION = 0.71
"""8 x H100 320 of 450 GB/s, A100 210 of 300, B200 640 of 900 (NVIDIA slides)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Protocol:
    """One of NCCL's protocols: microseconds per step and share of the bandwidth."""

    bandwidth_fraction: float
    ring_base_us: float
    tree_base_us: float
    ring_scale_up_us: float
    ring_pcie_us: float
    ring_network_us: float
    tree_scale_up_us: float
    tree_pcie_us: float
    tree_network_us: float


PROTOCOLS = (
    Protocol(
        bandwidth_fraction=0.5,
        ring_base_us=6.6,
        tree_base_us=6.8,
        ring_scale_up_us=0.6,
        ring_pcie_us=1.0,
        ring_network_us=2.7,
        tree_scale_up_us=0.6,
        tree_pcie_us=1.0,
        tree_network_us=5.0,
    ),
    Protocol(
        bandwidth_fraction=0.92,
        ring_base_us=14.0,
        tree_base_us=14.0,
        ring_scale_up_us=1.9,
        ring_pcie_us=2.5,
        ring_network_us=4.0,
        tree_scale_up_us=1.25,
        tree_pcie_us=1.9,
        tree_network_us=8.5,
    ),
    Protocol(
        bandwidth_fraction=1.0,
        ring_base_us=8.4,
        tree_base_us=8.4,
        ring_scale_up_us=3.4,
        ring_pcie_us=5.7,
        ring_network_us=14.0,
        tree_scale_up_us=4.0,
        tree_pcie_us=4.0,
        tree_network_us=14.0,
    ),
)
"""LL, LL128 and Simple: NVIDIA/nccl ``src/graph/tuning.cc``, commit 5067397 (``nccl_constants.csv``)."""
LOW_LATENCY_MAX_BYTES_PER_S = (
    ("Volta", (39.0e9, 39.0e9, 20.4e9)),
    ("Ampere", (87.7e9, 22.5e9, 19.0e9)),
    ("Hopper", (141.0e9, 45.0e9, 35.0e9)),
    ("Blackwell", (282.0e9, 90.0e9, 70.0e9)),
)
"""Most bus bandwidth the LL protocol reaches on one, two and more nodes (same file, ``llMaxBw``)."""
TREE_BANDWIDTH_FRACTION = 0.92 * 0.85
"""Tree over ring bandwidth, and the penalty of its pattern (same file)."""
NVLS_LATENCY_US = 25.0
PAT_BASE_US = 8.0
PAT_NETWORK_US = 14.0
"""Parallel aggregated trees: all-gather and reduce-scatter with one rank per node, logarithmic latency (same file)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where the ranks of a group are."""

    size: int
    ranks_per_domain: int
    num_domains: int
    inner_line_bytes_per_s: BytesPerSecond
    """One GPU's scale-up links by their line rate; 0 when no two ranks share a domain."""
    inner_bandwidth_bytes_per_s: BytesPerSecond
    """The same as rings reach it."""
    switch_bandwidth_bytes_per_s: BytesPerSecond
    """The same for an all-reduce that the switch performs."""
    outer_bandwidth_bytes_per_s: BytesPerSecond
    """One GPU's share of the network, as collectives reach it; 0 inside one domain."""
    low_latency_bandwidth_bytes_per_s: BytesPerSecond
    """Most the LL protocol moves."""
    is_pcie: bool
    network_latency_us: float


def place_group(*, cluster: Cluster, size: int, stride: int) -> Placement:
    """Where the worst placed group of an axis lies, and the bandwidths it sees."""
    node = cluster.node
    domains = blocks_spanned(
        group_size=size,
        stride=stride,
        block_size=max(1, node.scale_up_domain_gpus),
        num_ranks=cluster.num_gpus,
    )
    inside = ceil(size / domains)
    fraction = _link_fraction(cluster)
    line = node.scale_up_bandwidth_of(inside) if inside > 1 else 0.0
    switch = fraction.in_switch_fraction if inside >= NVLS_MIN_GPUS else 0.0
    nodes = cluster.nodes_spanned(size, stride)
    return Placement(
        size=size,
        ranks_per_domain=inside,
        num_domains=domains,
        inner_line_bytes_per_s=line,
        inner_bandwidth_bytes_per_s=line * fraction.fraction,
        switch_bandwidth_bytes_per_s=line * max(switch, fraction.fraction),
        outer_bandwidth_bytes_per_s=_outer_bandwidth(cluster, nodes) if domains > 1 else 0.0,
        low_latency_bandwidth_bytes_per_s=_low_latency_bandwidth(cluster.gpu.arch, nodes),
        is_pcie=not node.scale_up.startswith(("NVLink", "xGMI", "RoCE")),
        network_latency_us=node.network.latency_s / MICROSECOND if nodes > 1 else 0.0,
    )


def _outer_bandwidth(cluster: Cluster, nodes: int) -> BytesPerSecond:
    """The network between nodes; PCIe between fast domains of one node."""
    network = cluster.node.network
    if nodes == 1:
        return cluster.gpu.pcie_bandwidth_bytes_per_s * _fraction_of("PCIe", "")
    return network.bandwidth_bytes_per_s * (network.achieved_fraction or DEFAULT_NETWORK_FRACTION)


def _low_latency_bandwidth(arch: str, nodes: int) -> BytesPerSecond:
    """Unknown architectures take Ampere's row, the lowest of the current ones."""
    rows = dict(LOW_LATENCY_MAX_BYTES_PER_S)
    found = next((row for name, row in rows.items() if arch.startswith(name)), rows["Ampere"])
    return found[min(nodes, 3) - 1]


def _link_fraction(cluster: Cluster) -> LinkFraction:
    link, arch = cluster.node.scale_up, cluster.gpu.arch
    found = next((row for row in LINK_FRACTIONS if link.startswith(row.link) and arch.startswith(row.arch)), None)
    return found or LinkFraction(link=link, arch=arch, fraction=DEFAULT_LINK_FRACTION)


def _fraction_of(link: str, arch: str) -> float:
    return next(row.fraction for row in LINK_FRACTIONS if row.link == link and row.arch == arch)


def collective_time_s(collective: Collective, *, placement: Placement) -> Seconds:
    """Time of one call when nothing else uses the links."""
    if placement.size <= 1:
        return 0.0
    payload = collective.num_bytes
    if collective.kind == "all_reduce":
        return _all_reduce_s(payload, placement)
    if collective.kind == "all_to_all":
        return _all_to_all_s(payload, placement)
    if collective.kind == "send_recv":
        return _send_recv_s(payload, placement)
    if collective.kind == "broadcast":
        return _ring_s(payload, placement, passes=1)
    return _gather_s(payload, placement)


def _levels_s(payload: float, passes: int, placement: Placement) -> tuple[Seconds, Seconds]:
    """Bandwidth time inside a domain and between domains, for one or two passes over the payload."""
    inner = outer = 0.0
    if placement.inner_bandwidth_bytes_per_s:
        factor = all_gather_factor(group_size=placement.size)
        inner = passes * factor * payload / placement.inner_bandwidth_bytes_per_s
    if placement.num_domains > 1:
        share = payload / placement.ranks_per_domain
        factor = all_gather_factor(group_size=placement.num_domains)
        outer = passes * factor * share / placement.outer_bandwidth_bytes_per_s
    return inner, outer


def _ring_s(payload: float, placement: Placement, *, passes: int) -> Seconds:
    """Best protocol of a ring that visits domain after domain."""
    inner, outer = _levels_s(payload, passes, placement)
    moving = max(inner, outer)
    factor = all_gather_factor(group_size=placement.size)
    hops_out = placement.num_domains - 1 if placement.num_domains > 1 else 0
    hops_in = placement.size - 1 - hops_out
    best = float("inf")
    for protocol in PROTOCOLS:
        step = protocol.ring_pcie_us if placement.is_pcie else protocol.ring_scale_up_us
        hop = max(protocol.ring_network_us, placement.network_latency_us)
        latency = protocol.ring_base_us + passes * (hops_in * step + hops_out * hop)
        moved = _protocol_s(protocol, moving, passes * factor * payload, placement)
        best = min(best, latency * MICROSECOND + moved)
    return best


def _protocol_s(protocol: Protocol, moving: Seconds, volume: float, placement: Placement) -> Seconds:
    """Bandwidth time under a protocol: ``moving`` at full rate, ``volume`` bytes on the bus."""
    slowed = moving / protocol.bandwidth_fraction
    if protocol is PROTOCOLS[0]:
        return max(slowed, volume / placement.low_latency_bandwidth_bytes_per_s)
    return slowed


def _gather_s(payload: float, placement: Placement) -> Seconds:
    """All-gather or reduce-scatter: a ring, or logarithmic trees when every rank is alone in its domain."""
    ring = _ring_s(payload, placement, passes=1)
    if placement.ranks_per_domain > 1:
        return ring
    hop = max(PAT_NETWORK_US, placement.network_latency_us)
    latency = PAT_BASE_US + log2(placement.size) * hop
    return min(ring, latency * MICROSECOND + max(_levels_s(payload, 1, placement)))


def _all_reduce_s(payload: float, placement: Placement) -> Seconds:
    """Ring, tree or in-switch reduction, whichever is fastest."""
    return min(_ring_s(payload, placement, passes=2), _tree_s(payload, placement), _in_switch_s(payload, placement))


def _tree_s(payload: float, placement: Placement) -> Seconds:
    moving = max(_levels_s(payload, 2, placement)) / TREE_BANDWIDTH_FRACTION
    volume = all_reduce_factor(group_size=placement.size) * payload
    depth = log2(placement.num_domains) if placement.num_domains > 1 else 0.0
    best = float("inf")
    for protocol in PROTOCOLS:
        step = protocol.tree_pcie_us if placement.is_pcie else protocol.tree_scale_up_us
        hop = max(protocol.tree_network_us, placement.network_latency_us)
        latency = protocol.tree_base_us + 2 * ((placement.ranks_per_domain - 1) * step + depth * hop)
        moved = _protocol_s(protocol, moving, volume, placement)
        best = min(best, latency * MICROSECOND + moved)
    return best


def _in_switch_s(payload: float, placement: Placement) -> Seconds:
    """Reduction in the switch: only where it moves more than the ring does."""
    if placement.switch_bandwidth_bytes_per_s <= placement.inner_bandwidth_bytes_per_s:
        return float("inf")
    factor = all_reduce_factor(group_size=placement.ranks_per_domain)
    inner = factor * payload / placement.switch_bandwidth_bytes_per_s
    _, outer = _levels_s(payload, 2, placement)
    depth = log2(placement.num_domains) if placement.num_domains > 1 else 0.0
    hop = max(PAT_NETWORK_US, placement.network_latency_us)
    return (NVLS_LATENCY_US + 2 * depth * hop) * MICROSECOND + max(inner, outer)


def _all_to_all_s(payload: float, placement: Placement) -> Seconds:
    """Every rank sends an equal part to every other: the part that leaves the domain uses the rank's own NIC."""
    own_part = payload / placement.size
    inner = outer = 0.0
    if placement.inner_bandwidth_bytes_per_s:
        reached = min(placement.inner_line_bytes_per_s * ALL_TO_ALL_FRACTION, placement.inner_bandwidth_bytes_per_s)
        inner = own_part * (placement.ranks_per_domain - 1) / reached
    latency = PROTOCOLS[2].ring_base_us
    if placement.num_domains > 1:
        outer = own_part * (placement.size - placement.ranks_per_domain) / placement.outer_bandwidth_bytes_per_s
        latency += max(PROTOCOLS[2].ring_network_us, placement.network_latency_us)
    return latency * MICROSECOND + max(inner, outer)


def _send_recv_s(payload: float, placement: Placement) -> Seconds:
    """One message to one neighbour."""
    protocol = PROTOCOLS[2]
    if placement.num_domains > 1:
        hop = max(protocol.ring_network_us, placement.network_latency_us)
        return (protocol.ring_base_us + hop) * MICROSECOND + payload / placement.outer_bandwidth_bytes_per_s
    step = protocol.ring_pcie_us if placement.is_pcie else protocol.ring_scale_up_us
    return (protocol.ring_base_us + step) * MICROSECOND + payload / placement.inner_bandwidth_bytes_per_s

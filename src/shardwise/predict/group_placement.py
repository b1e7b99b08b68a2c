"""Where the ranks of a group lie, and which links its collectives therefore see.

A group is placed first: how many of its ranks share a fast domain, how many share a host, and how many hosts it spans.
Inside a domain messages use each GPU's scale-up links; between domains of one host PCIe; between hosts each rank uses
its share of the host's NICs, because the other ranks of the host communicate in groups of the same axis at that time.
"""

from dataclasses import dataclass
from math import ceil

from shardwise.calibration import Calibration
from shardwise.cluster import Cluster, Network, blocks_spanned
from shardwise.units import MICROSECOND, BytesPerSecond


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkFraction:
    """Share of a scale-up link's line rate that collectives reach."""

    link: str
    """Beginning of the node's scale-up type."""
    arch: str
    fraction: float
    """Share that rings reach."""
    in_switch_fraction: float = 0.0
    """Share that an all-reduce performed by the switch (NVLS) reaches; 0 where there is none."""
    min_num_in_switch_gpus: int = 0


LINK_FRACTIONS = (
    # 8 x H200, 16 GiB: all-gather 361, all-reduce 367 of 450 GB/s without NVLS. With it 414, 436, 460 and 482 for 5 to
    # 8 GPUs: 0.68 to 0.69 of the line for (1 + 1/n) payloads, the volume of an in-switch all-reduce. 4 take a ring.
    LinkFraction(link="NVLink", arch="Hopper", fraction=0.81, in_switch_fraction=0.685, min_num_in_switch_gpus=5),
    # 8 x B200: 682 without NVLS of 900 GB/s; 778, 811 and 846 with it for 6 to 8 GPUs. 4 and 5 take a ring.
    LinkFraction(link="NVLink", arch="Blackwell", fraction=0.758, in_switch_fraction=0.603, min_num_in_switch_gpus=6),
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
"""Share of the line rate of fabrics without a reading: EFA reaches 0.85, InfiniBand and RoCE 0.96 per NIC."""
EXCHANGE_FRACTION = 0.71
"""All-to-all's share in a domain: 8 x H100 320 of 450 GB/s, A100 210 of 300, B200 640 of 900 (NVIDIA slides)."""
PCIE_EXCHANGE_FRACTION = 0.19
"""All-to-all of more GPUs than one root complex has: 12 of 63 GB/s on PCIe 5, 24 of 121 on PCIe 6, two times four GPUs
(NVIDIA slides): half of the bytes cross between the sockets."""
ROOT_COMPLEX_GPUS = 4
MESSAGE_GROUP_FRACTION = 0.832
"""Tokens sent once per node: 41.6 of 50 GB/s, the low end of DeepEP's plotted rates (arXiv:2505.09343, figure 7). Rates
that the libraries print count what stays on the host: of HybridEP's 57.6 and 50.8 GB/s on 4 and 8 servers of H100 43.2
and 44.4 leave it, 35.5 to 40.8 with the copies around its kernels; of DeepEP's 58 and 51 on H800 43.5 and 44.6
(deepseek-ai/DeepEP, hybrid-ep ``docs/README_Hybrid-EP.md``, 2026, and ``docs/legacy.md``)."""
FORWARDED_FRACTION = 0.519
"""Copies that such kernels make for the ranks of a host, over the line rate of its links: 234 of 450 GB/s. On two
servers they take longer than the network: HybridEP prints 76.8 and 68.0 GB/s at best, two copies of every token, where
6.45 of 16 ranks receive one (same table, dispatch in 16 bits and combine, kernels alone)."""
ASSUMED_LINK_BYTES_PER_S = 31.5e9
"""PCIe 4 x16, assumed where no rate of a link is known."""
ASSUMED_LATENCY_US = 30.0
"""TCP in a data centre, assumed where no latency is known."""
INCLUDED_LATENCY_US = 5.0
"""Part of a network's latency that NCCL's own constants contain: its shortest tree step."""
FORWARDING_LINKS = ("NVLink", "xGMI")
"""Beginnings of scale-up types over which rows reach the GPU of another rail."""
RDMA_KINDS = ("InfiniBand", "RoCE")
SOCKET_KINDS = ("Ethernet", "GPUDirect-TCPX", "loopback")


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPlacement:
    """Where the ranks of a group are, and the bandwidths they see."""

    size: int
    ranks_per_domain: int
    num_domains: int
    ranks_per_host: int
    num_hosts: int
    """Number of nodes as NCCL counts them: servers, or whole NVLink domains where those span servers."""
    link: str
    """Type of the scale-up link: NVLink, xGMI, PCIe, ..."""
    arch: str
    gpu_id: str
    network_id: str
    """Network between the hosts; empty for a group inside one host."""
    fabric: str
    """``rdma`` or ``sockets``; empty for a group inside one host."""
    inner_line_bytes_per_s: BytesPerSecond
    """Line rate of one GPU's scale-up links; 0 when no two ranks share a domain."""
    inner_bandwidth_bytes_per_s: BytesPerSecond
    """Rate of one GPU's scale-up links that rings reach."""
    exchange_bandwidth_bytes_per_s: BytesPerSecond
    """Rate of one GPU's scale-up links that an all-to-all reaches."""
    switch_bandwidth_bytes_per_s: BytesPerSecond
    """Rate of an all-reduce that the switch performs; 0 where NCCL does not choose that."""
    host_bandwidth_bytes_per_s: BytesPerSecond
    """Rate from one GPU to another domain of its host; 0 when there is one domain per host."""
    network_line_bytes_per_s: BytesPerSecond
    network_bandwidth_bytes_per_s: BytesPerSecond
    """One GPU's share of the NICs, as rings and trees reach it; 0 inside one host."""
    network_exchange_bytes_per_s: BytesPerSecond
    """One GPU's share of the NICs, as an all-to-all reaches it."""
    network_message_bytes_per_s: BytesPerSecond
    """One GPU's share of the NICs, as messages between neighbours reach it."""
    is_pcie: bool
    """Whether ranks of one host meet over PCIe."""
    has_ll128: bool
    """Whether NCCL may use its 128-byte protocol: NVLink inside, NICs beside their GPUs."""
    extra_latency_us: float
    """Latency of a network step in microseconds, beyond what NCCL's constants hold."""
    calibration: Calibration | None = None
    """Measurements of these machines, where there are some."""

    @property
    def uses_in_switch_reduction(self) -> bool:
        """Whether all-reduces of this group run in the switch."""
        return self.switch_bandwidth_bytes_per_s > 0


def place_group(
    *,
    cluster: Cluster,
    size: int,
    stride: int,
    has_in_switch_reduction: bool = True,
    is_chain: bool = False,
) -> GroupPlacement:
    """Where the worst placed group of an axis lies, and the bandwidths it sees.

    Args:
        cluster: the machines.
        size: ranks of the group.
        stride: ranks from one member to the next.
        has_in_switch_reduction: whether NVLS is on; ``NCCL_NVLS_ENABLE=0`` or a host without multicast turn it off.
        is_chain: whether the group is any two neighbours of a chain over all ranks (a pipeline), of which some lie on
            both sides of a host's end.
    """
    node = cluster.node
    domains, hosts = _spans(cluster, size=size, stride=stride, is_chain=is_chain)
    inside = ceil(size / domains)
    fraction = link_fraction(cluster)
    line = (node.scale_up_bandwidth_of(inside) or ASSUMED_LINK_BYTES_PER_S) if inside > 1 else 0.0
    is_pcie = not node.scale_up.startswith((*FORWARDING_LINKS, "RoCE")) or (domains > hosts)
    in_switch = has_in_switch_reduction and 0 < fraction.min_num_in_switch_gpus <= inside
    network = _network_rates(cluster, size=size, stride=stride, hosts=hosts)
    sharing = _unshared_ratio(cluster, stride) if is_chain else 1.0
    return GroupPlacement(
        size=size,
        ranks_per_domain=inside,
        num_domains=domains,
        ranks_per_host=ceil(size / hosts),
        num_hosts=hosts,
        link=fraction.link,
        arch=fraction.arch,
        gpu_id=cluster.gpu.id,
        network_id=node.network.id if hosts > 1 else "",
        fabric=_fabric(node.network) if hosts > 1 else "",
        inner_line_bytes_per_s=line,
        inner_bandwidth_bytes_per_s=line * fraction.fraction,
        exchange_bandwidth_bytes_per_s=line * _exchange_fraction(fraction, inside),
        switch_bandwidth_bytes_per_s=line * fraction.in_switch_fraction if in_switch else 0.0,
        host_bandwidth_bytes_per_s=_host_bandwidth(cluster) if domains > hosts else 0.0,
        network_line_bytes_per_s=network.line_bytes_per_s,
        network_bandwidth_bytes_per_s=network.ring_bytes_per_s,
        network_exchange_bytes_per_s=network.exchange_bytes_per_s,
        network_message_bytes_per_s=network.message_bytes_per_s * sharing,
        is_pcie=is_pcie,
        has_ll128=not is_pcie and (hosts == 1 or _fabric(node.network) == "rdma"),
        extra_latency_us=_extra_latency_us(node.network) if hosts > 1 else 0.0,
        calibration=cluster.calibration,
    )


def _spans(cluster: Cluster, *, size: int, stride: int, is_chain: bool) -> tuple[int, int]:
    """Domains and hosts that the group lies on."""
    node = cluster.node
    domain_gpus = max(1, node.scale_up_domain_gpus)
    host_gpus = max(domain_gpus, node.gpus_per_node)
    if is_chain:
        return min(size, -(-cluster.num_gpus // domain_gpus)), min(size, -(-cluster.num_gpus // host_gpus))
    domains = blocks_spanned(group_size=size, stride=stride, block_size=domain_gpus, num_ranks=cluster.num_gpus)
    if host_gpus == domain_gpus:
        return domains, domains
    return domains, cluster.nodes_spanned(size, stride)


def _unshared_ratio(cluster: Cluster, stride: int) -> float:
    """How many even shares of the NICs a sending GPU gets: at a host's end inside a stage only ``stride`` GPUs send."""
    node = cluster.node
    if not 0 < node.num_nics < node.gpus_per_node or stride >= node.gpus_per_node:
        return 1.0
    return min(node.gpus_per_node / stride, node.gpus_per_node / node.num_nics)


@dataclass(frozen=True, slots=True, kw_only=True)
class _NetworkRates:
    line_bytes_per_s: BytesPerSecond = 0.0
    ring_bytes_per_s: BytesPerSecond = 0.0
    exchange_bytes_per_s: BytesPerSecond = 0.0
    message_bytes_per_s: BytesPerSecond = 0.0


def _network_rates(cluster: Cluster, *, size: int, stride: int, hosts: int) -> _NetworkRates:
    """One GPU's share of the fabric, where links above a pod are fewer than below.

    Only the hop of a ring that leaves a pod uses those links, so with m hosts in a pod an m-th of the traffic does. An
    all-to-all sends most of its bytes there, and neighbours' messages go there from a pod's last ``stride`` GPUs.

    Rings, trees and messages of a pipeline keep to the rail of their GPU. So does an all-to-all behind NVLink, which
    moves rows to the GPU of the receiver's rail first (NCCL 2.12, ``NCCL_PXN_DISABLE``); over PCIe the rows for other
    rails go through the links above.
    """
    if hosts == 1:
        return _NetworkRates()
    network = cluster.node.network
    line = network.bandwidth_bytes_per_s or ASSUMED_LINK_BYTES_PER_S / cluster.node.gpus_per_node
    reached = line * (network.achieved_fraction or DEFAULT_NETWORK_FRACTION)
    if cluster.gpu.pcie_bandwidth_bytes_per_s:
        reached = min(reached, _host_bandwidth(cluster))
    pod_gpus = max(network.pod_gpus, cluster.node.gpus_per_node, cluster.node.scale_up_domain_gpus)
    pods = blocks_spanned(group_size=size, stride=stride, block_size=pod_gpus, num_ranks=cluster.num_gpus)
    ratio = network.oversubscription_ratio
    crosses_rails = network.num_rails > 1 and not cluster.node.scale_up.startswith(FORWARDING_LINKS)
    if ratio <= 1 or (pods == 1 and not crosses_rails):
        return _NetworkRates(
            line_bytes_per_s=line, ring_bytes_per_s=reached, exchange_bytes_per_s=reached, message_bytes_per_s=reached
        )
    leaving_host, above = size - ceil(size / hosts), float(size - ceil(size / pods))
    if crosses_rails:
        above += (leaving_host - above) * (1 - 1 / network.num_rails)
    leaving_ratio = ratio if pods > 1 else 1.0
    return _NetworkRates(
        line_bytes_per_s=line,
        ring_bytes_per_s=reached * min(1.0, hosts / pods / leaving_ratio),
        exchange_bytes_per_s=reached * min(1.0, leaving_host / (above * ratio)),
        message_bytes_per_s=reached * min(1.0, pod_gpus / (min(stride, pod_gpus) * leaving_ratio)),
    )


def _host_bandwidth(cluster: Cluster) -> BytesPerSecond:
    """Rate that one GPU reaches over PCIe."""
    line = cluster.gpu.pcie_bandwidth_bytes_per_s or ASSUMED_LINK_BYTES_PER_S
    return line * next(row.fraction for row in LINK_FRACTIONS if row.link == "PCIe")


def _fabric(network: Network) -> str:
    """Whether NICs write into GPU memory by themselves, or the host's sockets carry the data."""
    return "sockets" if network.kind.startswith(SOCKET_KINDS) else "rdma"


def _extra_latency_us(network: Network) -> float:
    if not network.latency_s and network.kind not in RDMA_KINDS:
        return ASSUMED_LATENCY_US - INCLUDED_LATENCY_US
    return max(0.0, network.latency_s / MICROSECOND - INCLUDED_LATENCY_US)


def _exchange_fraction(fraction: LinkFraction, inside: int) -> float:
    if fraction.link == "PCIe" and inside > ROOT_COMPLEX_GPUS:
        return PCIE_EXCHANGE_FRACTION
    return min(fraction.fraction, EXCHANGE_FRACTION)


def link_fraction(cluster: Cluster) -> LinkFraction:
    """The plateaus known for the scale-up link of this cluster."""
    link, arch = cluster.node.scale_up, cluster.gpu.arch
    found = next((row for row in LINK_FRACTIONS if link.startswith(row.link) and arch.startswith(row.arch)), None)
    if found is None:
        return LinkFraction(link=link, arch=arch, fraction=DEFAULT_LINK_FRACTION)
    return LinkFraction(
        link=found.link,
        arch=found.arch or arch,
        fraction=found.fraction,
        in_switch_fraction=found.in_switch_fraction,
        min_num_in_switch_gpus=found.min_num_in_switch_gpus,
    )


def placement_doubts(cluster: Cluster) -> tuple[str, ...]:
    """Figures that are unknown and had to be assumed, in sentences; each widens the band."""
    node, network = cluster.node, cluster.node.network
    doubts = []
    if node.gpus_per_node > 1 and not node.scale_up_bandwidth_bytes_per_s:
        doubts.append(f"{node.id}: no rate of its links is known; PCIe 4 x16 is assumed, expect a wider band")
    if cluster.num_nodes > 1 and not network.latency_s and network.kind not in RDMA_KINDS:
        doubts.append(
            f"{network.id}: no latency is known; {ASSUMED_LATENCY_US:g} us a message is assumed, expect a wider band"
        )
    return tuple(doubts)

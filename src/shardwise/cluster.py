"""The machines: GPU, node, network and cluster, in bytes, seconds and FLOP, one direction, dense peaks."""

from dataclasses import dataclass
from math import gcd
from typing import Literal

from shardwise.calibration import Calibration
from shardwise.units import Bytes, BytesPerSecond, Dollars, FlopPerSecond, Seconds

Confidence = Literal["high", "medium", "low", "user"]
Dtype = Literal["fp32", "tf32", "bf16", "fp16", "fp8", "fp4"]
LinkKind = Literal["none", "scale_up", "host", "network"]
"""What a group of ranks talks over: nothing (one rank), the fast domain, PCIe inside the node, the fabric between."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """A dense matrix peak with fp32 accumulation for one dtype."""

    dtype: Dtype
    flop_per_s: FlopPerSecond


COHERENT_LINK_BYTES_PER_S: BytesPerSecond = 200e9
"""A host link at least this fast is NVLink-C2C: no PCIe is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One accelerator."""

    id: str
    name: str
    vendor: str
    arch: str
    memory_bytes: Bytes
    """Total capacity as the framework reports it (torch), not the marketing figure."""
    memory_is_derived: bool
    """True when no source states the framework's figure and it was derived from the device's own."""
    memory_bandwidth_bytes_per_s: BytesPerSecond
    peaks: tuple[Peak, ...]
    sm_count: int
    """Streaming multiprocessors, compute units or cores; 0 when unknown."""
    tdp_w: float
    """0 when unknown."""
    scale_up: str
    """Type of the fast domain: NVLink, Infinity Fabric, none, ..."""
    scale_up_bandwidth_bytes_per_s: BytesPerSecond
    """All links of the device summed, one direction; 0 when there are none."""
    peer_bandwidth_bytes_per_s: BytesPerSecond
    """To one peer, one direction; below the sum on meshes without a switch."""
    pcie_bandwidth_bytes_per_s: BytesPerSecond
    """To the host, one direction; NVLink-C2C where that is the host link."""
    source: str
    date: str
    confidence: Confidence
    notes: str = ""
    nominal_memory_bytes: Bytes = 0
    """The marketing figure in decimal bytes ("80 GB" is 80e9); what textbook arithmetic compares with. 0: unknown."""
    memory_note: str = ""
    """How ``memory_bytes`` was found, when that needs saying."""
    form_factor: str = ""
    memory_type: str = ""

    def peak_flop_per_s(self, dtype: Dtype) -> FlopPerSecond:
        """Dense peak for ``dtype``; 0 when the part has no matrix unit for it."""
        return next((peak.flop_per_s for peak in self.peaks if peak.dtype == dtype), 0.0)

    @property
    def has_coherent_host(self) -> bool:
        """Whether a Grace CPU sits beside it, reached over NVLink-C2C."""
        return self.pcie_bandwidth_bytes_per_s >= COHERENT_LINK_BYTES_PER_S

    @property
    def is_bf16_peak_unpublished(self) -> bool:
        """Whether the part multiplies bf16 at a rate nobody states, as every part with units for fp8 or fp4 does.

        A V100 has no bf16 rate because it has no bf16 units; a GB10, whose fp4 rate alone is published, has them.
        """
        narrower = self.peak_flop_per_s("fp8") or self.peak_flop_per_s("fp4")
        return self.peak_flop_per_s("bf16") == 0 and narrower > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """The fabric between nodes."""

    id: str
    bandwidth_bytes_per_s: BytesPerSecond
    """Per GPU, one direction: the node's NICs divided by its GPUs."""
    latency_s: Seconds
    """One small message, end to end."""
    source: str
    date: str
    kind: str = ""
    """InfiniBand, RoCE, EFA, Ethernet, ..."""
    achieved_fraction: float = 0.0
    """Share of the line rate that was measured on this fabric; 0 when there is no reading."""
    is_assumed: bool = False
    """True when the catalogue does not know the node's fabric and a modest one stands in."""
    oversubscription_ratio: float = 1.0
    """Bandwidth below over bandwidth above the switches of one pod; 1 for a fabric that never blocks."""
    pod_gpus: int = 0
    """Consecutive GPUs that reach each other at full rate; 0 means one node."""
    num_rails: int = 1
    """Switches of the first tier that the NICs of one node hang on: 1 for a switch of the rack, 8 for a rail each."""
    confidence: Confidence = "high"
    notes: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """One row of the price book."""

    usd_per_gpu_hour: Dollars
    provider: str
    kind: str
    """on_demand, spot, reserved_block, specialist_median, market_median, assumed, user, ..."""
    date: str
    source: str
    gpu_id: str = ""
    sku: str = ""
    """The provider's name for what is sold, such as an instance type."""
    region: str = ""
    confidence: Confidence = "high"
    notes: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One server."""

    id: str
    name: str
    gpu: Gpu
    gpus_per_node: int
    scale_up_domain_gpus: int
    """GPUs reachable over the fast domain; 72 for NVL72, where it spans nodes."""
    scale_up_bandwidth_bytes_per_s: BytesPerSecond
    """Per GPU, one direction; PCIe where there is no fast link."""
    network: Network
    host_memory_bytes: Bytes
    """0 when unknown."""
    nvme_bytes: Bytes
    """0 when unknown."""
    prices: tuple[Price, ...]
    """The first is the sensible default; spot comes last."""
    source: str
    date: str
    provider: str = ""
    scale_up: str = ""
    """Link of the fast domain: NVLink, NVLink bridge, xGMI, PCIe, ..."""
    num_nics: int = 0
    """0 when unknown."""
    confidence: Confidence = "high"
    notes: str = ""

    def scale_up_bandwidth_of(self, group_size: int) -> BytesPerSecond:
        """What one of ``group_size`` GPUs of the fast domain can send at once, one direction.

        Behind a switch it is the whole port. On a mesh without one (AMD, Gaudi, the V100 cube) each peer has its own
        link, so a pair gets one link and only the full node gets them all.
        """
        peer_bandwidth = self.gpu.peer_bandwidth_bytes_per_s
        if group_size <= 1:
            return 0.0
        if not 0 < peer_bandwidth < self.scale_up_bandwidth_bytes_per_s:
            return self.scale_up_bandwidth_bytes_per_s
        return min(self.scale_up_bandwidth_bytes_per_s, peer_bandwidth * (group_size - 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """``num_nodes`` equal nodes, of which the last may lack some GPUs; ranks fill node after node."""

    node: Node
    num_nodes: int
    num_missing_gpus: int = 0
    """GPUs that the last node lacks, such as dead ones."""
    spec_json: str = ""
    """What the cluster was read from, as canonical JSON, so that a plan can carry it."""
    assumptions: tuple[str, ...] = ()
    calibration: Calibration | None = None
    """What was measured of these machines; a plan file does not carry it."""

    def __repr__(self) -> str:
        """How many of which accelerator, not every rate of them."""
        return f"Cluster({self.num_gpus} x {self.gpu.id})"

    @property
    def gpu(self) -> Gpu:
        """The accelerator of every rank."""
        return self.node.gpu

    @property
    def runs_on_cpu(self) -> bool:
        """Whether the host's own CPUs compute: no context, no workspaces, no cached blocks beside the tensors.

        A cluster file says so by ``vendor = "host"``, a calibration by what it timed.
        """
        calibrated = self.calibration is not None and self.calibration.runs_on_cpu
        return self.gpu.vendor == "host" or calibrated

    @property
    def num_gpus(self) -> int:
        """World size."""
        return self.num_nodes * self.node.gpus_per_node - self.num_missing_gpus

    @property
    def price(self) -> Price | None:
        """The price used unless the user gives one; ``None`` when no row is known."""
        return self.node.prices[0] if self.node.prices else None

    def node_of(self, rank: int) -> int:
        """Index of the node that holds ``rank``."""
        return rank // self.node.gpus_per_node

    def nodes_spanned(self, group_size: int, stride: int = 1) -> int:
        """Nodes touched by the worst placed group of ``group_size`` ranks that lie ``stride`` apart."""
        return self._blocks_spanned(group_size, stride, self.node.gpus_per_node)

    def _blocks_spanned(self, group_size: int, stride: int, block_size: int) -> int:
        """Blocks of consecutive ranks touched by the worst placed of these groups."""
        return blocks_spanned(group_size=group_size, stride=stride, block_size=block_size, num_ranks=self.num_gpus)

    def link_of(self, group_size: int, stride: int = 1) -> LinkKind:
        """The slowest kind of link that the worst placed of these groups needs."""
        if group_size <= 1:
            return "none"
        if self._blocks_spanned(group_size, stride, self.node.scale_up_domain_gpus) == 1:
            return "scale_up"
        return "host" if self.nodes_spanned(group_size, stride) == 1 else "network"

    def group_bandwidth_bytes_per_s(self, group_size: int, stride: int = 1) -> BytesPerSecond:
        """Line rate of the slowest link of the group, per GPU, one direction; 0 for a group of one."""
        link = self.link_of(group_size, stride)
        if link == "none":
            return 0.0
        if link == "scale_up":
            return self.node.scale_up_bandwidth_of(group_size)
        return self.gpu.pcie_bandwidth_bytes_per_s if link == "host" else self.node.network.bandwidth_bytes_per_s


def blocks_spanned(*, group_size: int, stride: int, block_size: int, num_ranks: int) -> int:
    """Blocks of ``block_size`` consecutive ranks touched by the worst placed group of one mesh axis.

    The groups of an axis tile the ranks: group ``(t, r)`` holds ``t * group_size * stride + r + i * stride`` for
    ``0 <= i < group_size`` and every ``0 <= r < stride``.

    >>> blocks_spanned(group_size=8, stride=1, block_size=8, num_ranks=64)
    1
    >>> blocks_spanned(group_size=8, stride=8, block_size=8, num_ranks=64)
    8
    >>> blocks_spanned(group_size=3, stride=1, block_size=4, num_ranks=12)  # ranks 3, 4, 5 straddle two nodes
    2
    """
    if stride >= block_size:
        return group_size
    tile = group_size * stride
    num_tiles = min(block_size // gcd(tile, block_size), max(1, num_ranks // tile))
    last_start = max(min(t * tile % block_size + stride - 1, block_size - 1) for t in range(num_tiles))
    return (last_start + tile - stride) // block_size + 1

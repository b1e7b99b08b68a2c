"""The machines: GPU, node, network and cluster, in bytes, seconds and FLOP, one direction, dense peaks."""

from dataclasses import dataclass
from typing import Literal

from shardwise.units import Bytes, BytesPerSecond, Dollars, FlopPerSecond, Seconds

Confidence = Literal["high", "medium", "low", "user"]
Dtype = Literal["fp32", "tf32", "bf16", "fp16", "fp8", "fp4"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """A dense matrix peak with fp32 accumulation for one dtype."""

    dtype: Dtype
    flop_per_s: FlopPerSecond


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
    tdp_w: float
    scale_up: str
    """Type of the fast domain: NVLink, Infinity Fabric, none, ..."""
    scale_up_bandwidth_bytes_per_s: BytesPerSecond
    """All links of the device summed, one direction; 0 when there are none."""
    peer_bandwidth_bytes_per_s: BytesPerSecond
    """To one peer, one direction; below the sum on meshes without a switch."""
    pcie_bandwidth_bytes_per_s: BytesPerSecond
    source: str
    date: str
    confidence: Confidence
    notes: str = ""

    def peak_flop_per_s(self, dtype: Dtype) -> FlopPerSecond:
        """Dense peak for ``dtype``; 0 when the part has no matrix unit for it."""
        return next((peak.flop_per_s for peak in self.peaks if peak.dtype == dtype), 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """The fabric between nodes."""

    id: str
    bandwidth_bytes_per_s: BytesPerSecond
    """Per GPU, one direction: the node's NICs divided by its GPUs."""
    latency_s: Seconds
    source: str
    date: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """One row of the price book."""

    usd_per_gpu_hour: Dollars
    provider: str
    kind: str
    """on_demand, spot, reserved_block, market_median, assumed, ..."""
    date: str
    source: str


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
    source: str
    date: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """``num_nodes`` equal nodes; ranks fill node after node."""

    node: Node
    num_nodes: int
    spec_json: str = ""
    """What the cluster was read from, as canonical JSON, so that a plan can carry it."""
    assumptions: tuple[str, ...] = ()

    @property
    def gpu(self) -> Gpu:
        """The accelerator of every rank."""
        return self.node.gpu

    @property
    def num_gpus(self) -> int:
        """World size."""
        return self.num_nodes * self.node.gpus_per_node

    @property
    def price(self) -> Price | None:
        """The price used unless the user gives one; ``None`` when no row is known."""
        return self.node.prices[0] if self.node.prices else None

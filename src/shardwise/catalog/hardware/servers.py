"""The server that a request means: a catalogue one, a part's usual one, a smaller share of it, or a plain host."""

from dataclasses import dataclass, replace

from shardwise.catalog.hardware.gpus import GpuEntry, gpu_entry
from shardwise.catalog.hardware.networks import UNKNOWN_FABRIC, network_between_nodes
from shardwise.catalog.hardware.nodes import load_node
from shardwise.catalog.hardware.own_gpu import own_gpu
from shardwise.catalog.hardware.prices import prices_of
from shardwise.catalog.hardware.request import ClusterRequest, GpuRequest, value_of
from shardwise.cluster import Gpu, Node
from shardwise.errors import ClusterError
from shardwise.units import GB_PER_S, format_gib

MAX_PROPOSED_GPUS = 8
"""GPUs of the server that is proposed for a part without a usual one."""
HOST_MEMORY_RATIO = 2
"""Memory of a plain host over that of its GPUs: "at least double the amount of CPU memory as there is total GPU memory"
(Puget Systems, hardware recommendations for machine learning and AI, 2025)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A server and what had to be assumed on the way to it."""

    node: Node
    assumptions: tuple[str, ...] = ()

    def assuming(self, text: str) -> "Draft":
        """This draft with one more assumption stated."""
        return replace(self, assumptions=(*self.assumptions, text))


def draft_server(request: ClusterRequest) -> Draft:
    """One server with the number of GPUs that the request asks for.

    Raises:
        ClusterError: ``cluster-size`` when the server cannot hold them; ``cluster-field`` for a GPU of one's own
            without ``gpus_per_node``.
    """
    if request.node_id:
        node = load_node(request.node_id)
        if request.gpus_per_node and request.gpus_per_node > node.gpus_per_node:
            raise ClusterError(
                f"{node.id} holds {node.gpus_per_node} GPUs, {request.gpus_per_node} were asked for",
                code="cluster-size",
                fix=f"use gpus_per_node={node.gpus_per_node}",
            )
        return _resized(Draft(node=node), request.gpus_per_node or node.gpus_per_node)
    if request.own_gpu is None:
        return _usual_server(gpu_entry(request.gpu_id), request.gpus_per_node)
    if request.own_gpu.based_on:
        return _server_of_changed_gpu(request.own_gpu, request.gpus_per_node)
    return _server_of_new_gpu(request.own_gpu, request.gpus_per_node)


def usual_gpus_per_node(request: ClusterRequest) -> int:
    """GPUs in one server of the kind that the request means, when it does not say.

    Raises:
        ClusterError: ``cluster-field`` for a GPU of one's own, which has no usual server.
    """
    if request.node_id:
        return load_node(request.node_id).gpus_per_node
    gpu_id = request.own_gpu.based_on if request.own_gpu else request.gpu_id
    if not gpu_id:
        raise _no_usual_server(request.num_gpus)
    entry = gpu_entry(gpu_id)
    return load_node(entry.usual_node_id).gpus_per_node if entry.usual_node_id else entry.num_usual_gpus


def _no_usual_server(num_gpus: int | None = None) -> ClusterError:
    """The refusal; servers of at most eight are proposed that the GPUs fill."""
    proposed = max(size for size in range(1, MAX_PROPOSED_GPUS + 1) if (num_gpus or MAX_PROPOSED_GPUS) % size == 0)
    return ClusterError(
        "a GPU described from nothing has no usual server",
        code="cluster-field",
        fix=f"add gpus_per_node = {proposed}",
    )


def _gpus(count: int) -> str:
    return f"{count} GPU" if count == 1 else f"{count} GPUs"


def _reach(node: Node) -> str:
    """The fast links of a server, and how far they reach where that is beyond it."""
    is_rack = node.scale_up_domain_gpus > node.gpus_per_node
    return f"{node.scale_up}, which joins {node.scale_up_domain_gpus} GPUs" if is_rack else node.scale_up


def _usual_server(entry: GpuEntry, gpus_per_node: int | None) -> Draft:
    """The usual server of a catalogue part, or a plain one when the catalogue has none."""
    if not entry.usual_node_id:
        return _plain_server_of(entry, gpus_per_node or entry.num_usual_gpus)
    node = replace(load_node(entry.usual_node_id), prices=prices_of(entry.gpu.id))  # nobody asked for its provider
    draft = Draft(node=node).assuming(
        f"{entry.gpu.id}: its usual server {node.id} is assumed, {_gpus(node.gpus_per_node)} over {_reach(node)}"
    )
    return _resized(draft, gpus_per_node or node.gpus_per_node)


def _plain_server_of(entry: GpuEntry, gpus_per_node: int) -> Draft:
    gpu = entry.gpu
    node = _plain_server(gpu, gpus_per_node, entry.usual_network_id)
    if gpu.scale_up == "loopback":
        node = replace(node, scale_up=gpu.scale_up, scale_up_bandwidth_bytes_per_s=gpu.scale_up_bandwidth_bytes_per_s)
        return Draft(node=node).assuming(
            f"cpu: {format_gib(gpu.memory_bytes)}, {gpu.peak_flop_per_s('fp32') / 1e9:g} GFLOP/s fp32 and 1 GB/s of "
            "gloo over loopback per process are assumed; nothing is read from this machine"
        )
    domain = _plain_domain(entry, gpus_per_node)
    if domain:
        node = replace(
            node,
            scale_up=gpu.scale_up,
            scale_up_domain_gpus=domain,
            scale_up_bandwidth_bytes_per_s=gpu.scale_up_bandwidth_bytes_per_s,
        )
    links = f" over {node.scale_up}" if gpus_per_node > 1 else ""
    node = replace(node, host_memory_bytes=HOST_MEMORY_RATIO * gpus_per_node * gpu.memory_bytes)
    return Draft(node=node).assuming(
        f"{gpu.id}: no reference server is in the catalogue; {_gpus(gpus_per_node)} per server{links} and "
        f"{format_gib(node.host_memory_bytes)} of host memory, twice that of its GPUs, are assumed "
        "(host_memory_gib says what there is)"
    )


def _plain_domain(entry: GpuEntry, gpus_per_node: int) -> int:
    """GPUs joined by the part's own links in a plain server; 0 where they meet over PCIe.

    Modules are joined by their links; cards only where the catalogue says that they are sold in bridged pairs.
    """
    if entry.gpu.scale_up == "none":
        return 0
    if entry.num_usual_domain_gpus != entry.num_usual_gpus:
        is_pod = entry.num_usual_domain_gpus > entry.num_usual_gpus
        return entry.num_usual_domain_gpus if is_pod else min(entry.num_usual_domain_gpus, gpus_per_node)
    return 0 if entry.gpu.scale_up == "NVLink bridge" else gpus_per_node


def _plain_server(gpu: Gpu, gpus_per_node: int, network_id: str) -> Node:
    """A PCIe host with this many GPUs and one known fabric."""
    return Node(
        id=f"generic-{gpus_per_node}x-{gpu.id}",
        name=f"{gpus_per_node} x {gpu.name}",
        gpu=gpu,
        gpus_per_node=gpus_per_node,
        scale_up_domain_gpus=gpus_per_node,
        scale_up_bandwidth_bytes_per_s=gpu.pcie_bandwidth_bytes_per_s,
        network=network_between_nodes(network_id, gpus_per_node=gpus_per_node),
        host_memory_bytes=0,
        nvme_bytes=0,
        prices=prices_of(gpu.id),
        source=gpu.source,
        date=gpu.date,
        provider="generic",
        scale_up="PCIe",
        confidence="low",
    )


def _resized(draft: Draft, gpus_per_node: int) -> Draft:
    """The server with another number of GPUs: host memory, NVMe and rails in proportion, a single NIC undivided."""
    node = draft.node
    if gpus_per_node == node.gpus_per_node:
        return draft
    share = gpus_per_node / node.gpus_per_node
    has_one_nic = node.num_nics == 1
    nic_share = share if has_one_nic else 1.0
    bandwidth_bytes_per_s = node.network.bandwidth_bytes_per_s / nic_share
    resized = replace(
        node,
        id=f"{node.id}-{gpus_per_node}gpu",
        name=f"{node.name}, {_gpus(gpus_per_node)}",
        gpus_per_node=gpus_per_node,
        scale_up_domain_gpus=_resized_domain(node, gpus_per_node),
        network=replace(node.network, bandwidth_bytes_per_s=bandwidth_bytes_per_s),
        host_memory_bytes=round(node.host_memory_bytes * share),
        nvme_bytes=round(node.nvme_bytes * share),
        num_nics=1 if has_one_nic else round(node.num_nics * share),
    )
    network = "the one NIC undivided" if has_one_nic else "network in proportion"
    return replace(draft, node=resized).assuming(
        f"{_gpus(gpus_per_node)} per server instead of the {node.gpus_per_node} of {node.id}: "
        f"host memory and NVMe in proportion, {network}"
    )


def _resized_domain(node: Node, gpus_per_node: int) -> int:
    """A rack stays whole, bridged pairs stay pairs, and a switch joins all GPUs of the server."""
    if node.scale_up_domain_gpus > node.gpus_per_node:
        return node.scale_up_domain_gpus
    if node.scale_up_domain_gpus < node.gpus_per_node:
        return min(node.scale_up_domain_gpus, gpus_per_node)
    return gpus_per_node


def _server_of_changed_gpu(own: GpuRequest, gpus_per_node: int | None) -> Draft:
    """The usual server of the part that the user started from, with the changed part in it."""
    draft = _usual_server(gpu_entry(own.based_on), gpus_per_node)
    gpu = own_gpu(own, base=draft.node.gpu)
    node = replace(draft.node, gpu=gpu, confidence="user")
    if value_of(own.settings, "scale_up_gb_per_s") is not None:
        node = replace(node, scale_up=gpu.scale_up, scale_up_bandwidth_bytes_per_s=gpu.scale_up_bandwidth_bytes_per_s)
    return replace(draft, node=node)


def _server_of_new_gpu(own: GpuRequest, gpus_per_node: int | None) -> Draft:
    """A plain host for a GPU that the catalogue does not know."""
    gpu = own_gpu(own, base=None)
    if gpus_per_node is None:
        raise _no_usual_server()
    node = _plain_server(gpu, gpus_per_node, UNKNOWN_FABRIC)
    node = replace(node, network=replace(node.network, is_assumed=True), confidence="user")
    if gpu.scale_up_bandwidth_bytes_per_s:
        node = replace(node, scale_up=gpu.scale_up, scale_up_bandwidth_bytes_per_s=gpu.scale_up_bandwidth_bytes_per_s)
    draft = Draft(node=node)
    if value_of(own.settings, "memory_bandwidth_gb_per_s") is None:
        moved = gpu.memory_bandwidth_bytes_per_s / GB_PER_S
        draft = draft.assuming(
            f"{gpu.id}: no memory_bandwidth_gb_per_s is given; {moved:,.0f} GB/s is assumed, what parts of today with "
            "its peak have"
        )
    if value_of(own.settings, "pcie_gb_per_s") is None:
        return draft.assuming(f"{gpu.id}: no pcie_gb_per_s is given; PCIe 4 x16, 31.5 GB/s, is assumed")
    return draft

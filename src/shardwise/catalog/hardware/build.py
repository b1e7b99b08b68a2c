"""Put a cluster together from a request and the catalogue, and say everything that had to be assumed."""

from dataclasses import replace

from shardwise.catalog.hardware.gpus import gpu_entry
from shardwise.catalog.hardware.networks import load_link, network_between_nodes
from shardwise.catalog.hardware.request import MAX_GPUS, ClusterRequest, Settings, request_json, value_of
from shardwise.catalog.hardware.servers import Draft, draft_server, usual_gpus_per_node
from shardwise.cluster import Cluster, Gpu, Network, Node, Price
from shardwise.errors import ClusterError
from shardwise.units import GB, GB_PER_S, GBIT_PER_S, GIB, MICROSECOND, Bytes, format_gib


def build_cluster(request: ClusterRequest) -> Cluster:
    """The cluster that a request describes, in base units, with its assumptions.

    Raises:
        ClusterError: ``cluster-partial-node``, ``cluster-size``, ``cluster-field``, ``cluster-network``.
    """
    request = _with_whole_nodes(request)
    draft = _with_overrides(_with_network(draft_server(request), request), request)
    node = draft.node
    _check_size(node, request.num_nodes)
    missing = int(value_of(request.overrides, "missing_gpus") or 0)
    if missing:
        draft = draft.assuming(_what_is_missing(node, request.num_nodes, missing))
    return Cluster(
        node=node,
        num_nodes=request.num_nodes,
        num_missing_gpus=missing,
        spec_json=request_json(request),
        assumptions=(*draft.assumptions, *_known_weaknesses(node, request)),
    )


def _what_is_missing(node: Node, num_nodes: int, missing: int) -> str:
    """The assumption that a cluster with an incomplete last server states.

    Raises:
        ClusterError: ``cluster-size`` where a single server, or more than one server's GPUs, would be missing.
    """
    if num_nodes == 1 or missing >= node.gpus_per_node:
        fewer = f"gpus_per_node={max(1, node.gpus_per_node - missing)}"
        raise ClusterError(
            f"missing_gpus={missing} are not part of the last of several servers of {node.gpus_per_node}",
            code="cluster-size",
            fix=f"use {fewer}" if num_nodes == 1 else "use a smaller num_nodes",
        )
    there = node.gpus_per_node - missing
    return f"{num_nodes - 1} whole servers of {node.gpus_per_node} GPUs and one with {there} of them"


def _check_size(node: Node, num_nodes: int) -> None:
    num_gpus = num_nodes * node.gpus_per_node
    if num_gpus > MAX_GPUS:
        raise ClusterError(
            f"{num_nodes:,} x {node.id} are {num_gpus:,} GPUs; a cluster has 1 to {MAX_GPUS:,}",
            code="cluster-size",
            fix=f"use num_nodes={MAX_GPUS // node.gpus_per_node} or fewer",
        )
    if node.network.kind == "loopback" and num_nodes > 1:
        raise ClusterError(
            f"cpu means the CPUs of this machine, and {num_nodes} machines were asked for",
            code="cluster-size",
            fix="use 2xcpu",
        )


def _with_whole_nodes(request: ClusterRequest) -> ClusterRequest:
    """The request with its GPU count split into servers, of which the last may lack some.

    Raises:
        ClusterError: ``cluster-partial-node`` when the count is less than one server that was asked for.
    """
    if request.num_gpus is None:
        return request
    num_gpus, gpus_per_node = request.num_gpus, request.gpus_per_node or usual_gpus_per_node(request)
    if num_gpus < gpus_per_node and request.gpus_per_node is None:
        return replace(request, num_gpus=None, num_nodes=1, gpus_per_node=num_gpus)
    num_nodes, rest = divmod(num_gpus, gpus_per_node)
    if not rest:
        return replace(request, num_gpus=None, num_nodes=num_nodes, gpus_per_node=gpus_per_node)
    if num_nodes:
        missing = (("missing_gpus", float(gpus_per_node - rest)), *_without(request.overrides, "missing_gpus"))
        return replace(request, num_gpus=None, num_nodes=num_nodes + 1, gpus_per_node=gpus_per_node, overrides=missing)
    raise ClusterError(
        f"{num_gpus} GPUs do not fill a server of {gpus_per_node}",
        code="cluster-partial-node",
        fix=f"use {gpus_per_node}x{request.gpu_id}" if request.gpu_id else f"use num_gpus={gpus_per_node}",
    )


def _without(settings: Settings, key: str) -> Settings:
    return tuple((given, value) for given, value in settings if given != key)


def _with_network(draft: Draft, request: ClusterRequest) -> Draft:
    """The server with the fabric and rate that the request names."""
    node, network = draft.node, draft.node.network
    per_node = value_of(request.overrides, "network_gbit_per_s_per_node")
    per_gpu = value_of(request.overrides, "network_gb_per_s_per_gpu")
    latency_us = value_of(request.overrides, "network_latency_us")
    if request.network_id:
        network = network_between_nodes(request.network_id, gpus_per_node=node.gpus_per_node)
        has_rails = load_link(request.network_id).scope == "nic"
        node = replace(node, num_nics=node.gpus_per_node if has_rails else 0)
        if has_rails and per_node is None and per_gpu is None and request.num_nodes > 1:
            draft = draft.assuming(f"{request.network_id}: one NIC per GPU is assumed")
    elif not request.node_id and per_node is None and per_gpu is None and request.num_nodes > 1:
        rate_gb_per_s = network.bandwidth_bytes_per_s / GB_PER_S
        draft = draft.assuming(f"{network.id} between servers is assumed, {rate_gb_per_s:g} GB/s per GPU")
    if per_node is not None:
        network = _at_rate(network, per_node * GBIT_PER_S / node.gpus_per_node)
    if per_gpu is not None:
        network = _at_rate(network, per_gpu * GB_PER_S)
    if latency_us is not None:
        network = replace(network, latency_s=latency_us * MICROSECOND)
    network = _with_pods(network, request)
    return replace(draft, node=replace(node, network=network))


def _with_pods(network: Network, request: ClusterRequest) -> Network:
    """The fabric with fewer links above its pods than below, and with rails below."""
    ratio = value_of(request.overrides, "network_oversubscription_ratio")
    pod_gpus = value_of(request.overrides, "network_pod_gpus")
    num_rails = value_of(request.overrides, "network_rails")
    return replace(
        network,
        oversubscription_ratio=network.oversubscription_ratio if ratio is None else ratio,
        pod_gpus=network.pod_gpus if pod_gpus is None else int(pod_gpus),
        num_rails=network.num_rails if num_rails is None else int(num_rails),
    )


def _at_rate(network: Network, bandwidth_bytes_per_s: float) -> Network:
    source = f"user;{network.source}"
    return replace(network, bandwidth_bytes_per_s=bandwidth_bytes_per_s, is_assumed=False, source=source)


def _with_overrides(draft: Draft, request: ClusterRequest) -> Draft:
    """The server with the user's own figures for memory, price, host and fast links."""
    node, given = draft.node, request.overrides
    memory_gib, host_memory_gib = value_of(given, "memory_gib"), value_of(given, "host_memory_gib")
    nvme_tb, domain = value_of(given, "nvme_tb"), value_of(given, "scale_up_domain_gpus")
    scale_up_gb_per_s = value_of(given, "scale_up_gb_per_s")
    if memory_gib is not None:
        node = replace(node, gpu=_with_memory(node.gpu, round(memory_gib * GIB)))
    if scale_up_gb_per_s is not None:
        node = _with_scale_up(node, scale_up_gb_per_s * GB_PER_S)
    node = replace(
        node,
        name=request.name or node.name,
        host_memory_bytes=node.host_memory_bytes if host_memory_gib is None else round(host_memory_gib * GIB),
        nvme_bytes=node.nvme_bytes if nvme_tb is None else round(nvme_tb * 1000 * GB),
        scale_up_domain_gpus=node.scale_up_domain_gpus if domain is None else int(domain),
        prices=(*_own_price(request, node.gpu.id), *node.prices),
    )
    return replace(draft, node=node)


def _with_memory(gpu: Gpu, memory_bytes: Bytes) -> Gpu:
    return replace(gpu, memory_bytes=memory_bytes, memory_is_derived=False, nominal_memory_bytes=0, memory_note="user")


def _with_scale_up(node: Node, bandwidth_bytes_per_s: float) -> Node:
    """The server with other fast links; a mesh keeps the share that one peer gets."""
    gpu = node.gpu
    peer_share = 1.0
    if 0 < gpu.peer_bandwidth_bytes_per_s < gpu.scale_up_bandwidth_bytes_per_s:
        peer_share = gpu.peer_bandwidth_bytes_per_s / gpu.scale_up_bandwidth_bytes_per_s
    gpu = replace(
        gpu,
        scale_up_bandwidth_bytes_per_s=bandwidth_bytes_per_s,
        peer_bandwidth_bytes_per_s=bandwidth_bytes_per_s * peer_share,
    )
    return replace(node, gpu=gpu, scale_up_bandwidth_bytes_per_s=bandwidth_bytes_per_s)


def _own_price(request: ClusterRequest, gpu_id: str) -> tuple[Price, ...]:
    usd_per_gpu_hour = value_of(request.overrides, "usd_per_gpu_hour")
    if usd_per_gpu_hour is None:
        return ()
    price = Price(
        usd_per_gpu_hour=usd_per_gpu_hour,
        provider="user",
        kind="user",
        date=request.price_date or "undated",
        source=request.price_source or "user",
        gpu_id=gpu_id,
        confidence="user",
    )
    return (price,)


def _known_weaknesses(node: Node, request: ClusterRequest) -> tuple[str, ...]:
    """Sentences about figures of this cluster that the catalogue itself is unsure of."""
    gpu = node.gpu
    if gpu.scale_up == "loopback":
        return ()
    texts = []
    if gpu.memory_is_derived:
        texts.append(f"{gpu.id}: usable memory {format_gib(gpu.memory_bytes)} is derived: {gpu.memory_note}")
    if request.gpu_id and gpu_entry(request.gpu_id).num_devices > 1:
        devices = gpu_entry(request.gpu_id).num_devices
        texts.append(f"{gpu.id}: a rank drives one of the {devices} devices of a part")
    if node.network.is_assumed and request.num_nodes > 1:
        texts.append(f"{node.id}: its fabric is not known; one 100 Gb/s Ethernet port per server is assumed")
    if gpu.confidence == "low":
        texts.append(f"{gpu.id}: its figures are marked low confidence: {gpu.notes}")
    if node.confidence == "low" and node.source != gpu.source:
        texts.append(f"{node.id}: its figures are marked low confidence, recalled and not re-read")
    return tuple(texts)

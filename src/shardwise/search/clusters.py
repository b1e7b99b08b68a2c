"""Variants of a cluster with more or fewer nodes or with bigger GPUs, as hypotheses that a search can be run on."""

import json
from dataclasses import replace

from shardwise.catalog import load_gpus, read_cluster
from shardwise.catalog.hardware.prices import prices_of
from shardwise.cluster import Cluster, Gpu
from shardwise.errors import ClusterError
from shardwise.predict.calibrated_cluster import calibrated_cluster
from shardwise.rules import Changes
from shardwise.units import GIB

__all__ = [
    "at_most",
    "bigger_gpus",
    "resized",
    "size_change",
    "with_dead_gpu",
    "with_gpu",
    "with_host_memory",
    "with_num_nodes",
]

BIGGER_RATIO = 1.15
"""A GPU has to hold this many times the memory to be worth naming."""
SIMILAR_RATIO = 1.1
"""Memory of parts up to so many times the least that is more is about the same."""
KEPT_KEYS = (
    "host_memory_gib",
    "nvme_tb",
    "network",
    "network_gbit_per_s_per_node",
    "network_gb_per_s_per_gpu",
    "network_latency_us",
    "network_oversubscription_ratio",
    "network_pod_gpus",
    "network_rails",
)
"""Keys of a cluster description about hosts and fabric: what a user gives for these holds for other GPUs too."""
SERVER_KEYS = ("host_memory_gib", "nvme_tb", "network_gbit_per_s_per_node", "scale_up_domain_gpus")
"""Who says one of these describes a server, and means others like it."""


def with_num_nodes(cluster: Cluster, num_nodes: int) -> Cluster:
    """The cluster with another number of equal nodes, its description included."""
    described = _described(cluster)
    if "num_nodes" not in described:
        return replace(cluster, num_nodes=num_nodes)
    return _same_machines(cluster, read_cluster({**described, "num_nodes": num_nodes}))


def at_most(cluster: Cluster, max_gpus: int | None) -> Cluster:
    """The cluster itself, or the whole nodes of it that hold at most ``max_gpus``.

    Raises:
        ClusterError: one node holds more, and it is a server that is not sold in parts.
    """
    if max_gpus is None or cluster.num_gpus <= max_gpus:
        return cluster
    per_node = cluster.node.gpus_per_node
    if max_gpus >= per_node:
        return with_num_nodes(cluster, max_gpus // per_node)
    described = _described(cluster)
    fewer = _read({**described, "gpus_per_node": max_gpus, "num_nodes": 1}) if "gpu" in described else None
    if fewer is None or max_gpus < 1:
        raise ClusterError(
            f"at most {max_gpus} GPUs are less than one node of {per_node}",
            code="search-bounds",
            fix=f"allow {per_node}, or name the cluster by its GPUs, such as {max(1, max_gpus)}x{cluster.gpu.id}",
        )
    return _same_machines(cluster, fewer)


def with_dead_gpu(cluster: Cluster) -> Cluster | None:
    """The cluster without one GPU of its last server; ``None`` where that leaves none, or nobody can describe it."""
    described = _described(cluster)
    if cluster.num_nodes > 1:
        missing = cluster.num_missing_gpus + 1
        fewer = _read({**described, "missing_gpus": missing}) if described else None
        return fewer and _same_machines(cluster, fewer)
    if cluster.num_gpus == 1 or "gpu" not in described:
        return None
    return at_most(cluster, cluster.num_gpus - 1)


def resized(cluster: Cluster, num_gpus: int) -> Cluster | str:
    """A cluster of the same kind with so many GPUs, or why there is none.

    A part of a server grows to whole ones: ``h100-sxm`` with 64 GPUs is ``64xh100-sxm``.
    """
    whole = _in_usual_servers(cluster)
    per_node = whole.node.gpus_per_node
    if num_gpus < per_node:
        try:
            return at_most(with_num_nodes(whole, 1), num_gpus)
        except ClusterError as error:
            return error.message
    if num_gpus % per_node:
        return f"{num_gpus} GPUs do not fill servers of {per_node}"
    return with_num_nodes(whole, num_gpus // per_node)


def size_change(cluster: Cluster, *, asked: Cluster) -> Changes:
    """The size of a cluster as a change of the one that was asked about: in nodes where these are the same.

    >>> size_change(read_cluster("64xh100-sxm"), asked=read_cluster("8xh100-sxm"))
    (('num_nodes', 8),)
    >>> size_change(read_cluster("64xh100-sxm"), asked=read_cluster("h100-sxm"))
    (('num_gpus', 64),)
    """
    if cluster.node.gpus_per_node == asked.node.gpus_per_node:
        return (("num_nodes", cluster.num_nodes),)
    return (("num_gpus", cluster.num_gpus),)


def bigger_gpus(gpu: Gpu, *, limit: int = 3) -> tuple[Gpu, ...]:
    """Parts of the same vendor and form factor with more memory that compute at least as fast, nearest first.

    Of those with about as much memory the one that computes least faster comes first: the same generation. Parts that
    somebody offers, at a price in the catalogue, leave out those that nobody does.
    """
    candidates = [
        other
        for other in load_gpus()
        if other.vendor == gpu.vendor
        and other.form_factor.rstrip("0123456789") == gpu.form_factor.rstrip("0123456789")
        and other.memory_bytes >= BIGGER_RATIO * gpu.memory_bytes
        and other.peak_flop_per_s("bf16") >= gpu.peak_flop_per_s("bf16")
    ]
    candidates = [other for other in candidates if prices_of(other.id)] or candidates
    least_bytes = min((other.memory_bytes for other in candidates), default=0)

    def distance(other: Gpu) -> tuple[float, float, str]:
        memory_bytes = max(other.memory_bytes, SIMILAR_RATIO * least_bytes)
        return memory_bytes, other.peak_flop_per_s("bf16"), other.id

    return tuple(sorted(candidates, key=distance)[:limit])


def with_gpu(cluster: Cluster, gpu: Gpu) -> Cluster | None:
    """As many nodes of as many GPUs of another part; ``None`` when no server of the catalogue is like that.

    Hosts and fabric stay as the user described them; a server of unknown host memory is given that of the old one.
    """
    described = _described(cluster)
    kept = {key: described[key] for key in KEPT_KEYS if key in described}
    sizes = {"gpus_per_node": cluster.node.gpus_per_node, "num_nodes": cluster.num_nodes}
    if cluster.num_missing_gpus:
        sizes["missing_gpus"] = cluster.num_missing_gpus
    changed = _read({"gpu": gpu.id, **sizes, **kept})
    if changed is None or changed.node.host_memory_bytes or not cluster.node.host_memory_bytes:
        return changed
    return _read({"gpu": gpu.id, **sizes, **kept, "host_memory_gib": cluster.node.host_memory_bytes / GIB})


def with_host_memory(cluster: Cluster, host_memory_gib: float) -> Cluster | None:
    """The cluster with other hosts; ``None`` when it was made by hand and cannot be described again."""
    described = _described(cluster)
    found = _read({**described, "host_memory_gib": host_memory_gib}) if described else None
    return found and _same_machines(cluster, found)


def _in_usual_servers(cluster: Cluster) -> Cluster:
    """One usual server of the GPU, where the cluster is a smaller part of one; otherwise the cluster itself.

    ``h100-sxm`` and ``4xh100-sxm`` name a GPU, of which more come in servers of eight. Several nodes, a server by its
    name, and hosts that are described stay what they are.
    """
    described = _described(cluster)
    if "gpu" not in described or cluster.num_nodes > 1 or any(key in described for key in SERVER_KEYS):
        return cluster
    usual = _read({key: value for key, value in described.items() if key != "gpus_per_node"})
    if usual is None or usual.node.gpus_per_node <= cluster.node.gpus_per_node:
        return cluster
    whole = read_cluster({**described, "gpus_per_node": usual.node.gpus_per_node})
    return _same_machines(cluster, whole)


def _same_machines(cluster: Cluster, other: Cluster) -> Cluster:
    """Another number of the same machines, with what was measured of them."""
    if cluster.calibration is None:
        return other
    return calibrated_cluster(other, cluster.calibration)


def _described(cluster: Cluster) -> dict[str, object]:
    """The description the cluster was read from, as a JSON object; empty for a cluster made by hand."""
    described = json.loads(cluster.spec_json) if cluster.spec_json else {}
    return described if isinstance(described, dict) else {}


def _read(description: dict[str, object]) -> Cluster | None:
    try:
        return read_cluster(description)
    except ClusterError:
        return None

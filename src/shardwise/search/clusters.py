"""The same cluster with more nodes or with bigger GPUs, as hypotheses that a search can be run on."""

import json
from dataclasses import replace

from shardwise.catalog import load_gpus, read_cluster
from shardwise.cluster import Cluster, Gpu
from shardwise.errors import ClusterError

__all__ = ["bigger_gpus", "with_gpu", "with_num_nodes"]

BIGGER_RATIO = 1.15
"""A GPU has to hold this many times the memory to be worth naming."""


def with_num_nodes(cluster: Cluster, num_nodes: int) -> Cluster:
    """The cluster with another number of equal nodes, its description included."""
    described = json.loads(cluster.spec_json) if cluster.spec_json else {}
    if not isinstance(described, dict) or "num_nodes" not in described:
        return replace(cluster, num_nodes=num_nodes)
    return read_cluster({**described, "num_nodes": num_nodes})


def bigger_gpus(gpu: Gpu, *, limit: int = 3) -> tuple[Gpu, ...]:
    """Parts of the same vendor and form factor with more memory that compute at least as fast, nearest first."""
    candidates = [
        other
        for other in load_gpus()
        if other.vendor == gpu.vendor
        and other.form_factor.rstrip("0123456789") == gpu.form_factor.rstrip("0123456789")
        and other.memory_bytes >= BIGGER_RATIO * gpu.memory_bytes
        and other.peak_flop_per_s("bf16") >= gpu.peak_flop_per_s("bf16")
    ]
    return tuple(sorted(candidates, key=lambda other: (other.memory_bytes, other.id))[:limit])


def with_gpu(cluster: Cluster, gpu: Gpu) -> Cluster | None:
    """As many nodes of as many GPUs of another part; ``None`` when no server of the catalogue is like that."""
    try:
        return read_cluster(
            {"gpu": gpu.id, "gpus_per_node": cluster.node.gpus_per_node, "num_nodes": cluster.num_nodes}
        )
    except ClusterError:
        return None

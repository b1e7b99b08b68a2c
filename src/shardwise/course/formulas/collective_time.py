"""Latency-bandwidth times of collectives.

The constants belong to the machine and are arguments; ``predict/communication.py`` brings them from NCCL's own model.
"""

from math import log2


def ring_all_reduce_s(
    *, payload_bytes: float, group_size: int, step_latency_s: float, bandwidth_bytes_per_s: float
) -> float:
    """Time of a ring all-reduce: ``2 (n - 1) alpha + 2 (n - 1) / n * S / B``.

    Source: Thakur et al. 2005, IJHPCA 19(1), section 4.4; Patarasuk and Yuan 2009, JPDC 69(2).
    Assumes: equal links, one direction; no computation cost.

    >>> round(ring_all_reduce_s(payload_bytes=8e9, group_size=8, step_latency_s=0.0, bandwidth_bytes_per_s=350e9), 3)
    0.04
    """
    steps = 2 * (group_size - 1)
    return steps * step_latency_s + steps / group_size * payload_bytes / bandwidth_bytes_per_s


def ring_all_gather_s(
    *, payload_bytes: float, group_size: int, step_latency_s: float, bandwidth_bytes_per_s: float
) -> float:
    """Time of a ring all-gather or reduce-scatter: ``(n - 1) alpha + (n - 1) / n * S / B``.

    Source: Thakur et al. 2005, IJHPCA 19(1), section 4.1.
    Assumes: S is the gathered tensor; equal links, one direction.

    >>> round(ring_all_gather_s(payload_bytes=8e9, group_size=8, step_latency_s=0.0, bandwidth_bytes_per_s=350e9), 3)
    0.02
    """
    steps = group_size - 1
    return steps * step_latency_s + steps / group_size * payload_bytes / bandwidth_bytes_per_s


def tree_all_reduce_s(
    *, payload_bytes: float, group_size: int, step_latency_s: float, bandwidth_bytes_per_s: float
) -> float:
    """Time of a double binary tree all-reduce: ``2 log2(n) alpha + 2 (n - 1) / n * S / B``.

    Source: Sanders, Speck and Traff 2009, Parallel Computing 35(12); Jeaugey 2019 (NCCL 2.4, double binary trees).
    Assumes: the payload is pipelined in pieces, so bandwidth is that of a ring.

    >>> round(tree_all_reduce_s(payload_bytes=0, group_size=1024, step_latency_s=5e-6, bandwidth_bytes_per_s=1e9), 6)
    0.0001
    """
    volume = 2 * (group_size - 1) / group_size * payload_bytes
    return 2 * log2(group_size) * step_latency_s + volume / bandwidth_bytes_per_s


def hierarchical_all_reduce_s(
    *,
    payload_bytes: float,
    num_nodes: int,
    gpus_per_node: int,
    node_bandwidth_bytes_per_s: float,
    nic_bandwidth_bytes_per_s: float,
    overlaps_levels: bool,
) -> float:
    """Bandwidth time of an all-reduce over nodes: reduce inside the node, across, and back.

    NVLink ``2 (g - 1) / g * S``, each NIC ``2 (k - 1) / k * S / g``; the larger when the levels are pipelined, else
    the sum.

    Args:
        payload_bytes: S.
        num_nodes: k.
        gpus_per_node: g, each with its own NIC.
        node_bandwidth_bytes_per_s: one GPU's links inside the node, one direction.
        nic_bandwidth_bytes_per_s: one GPU's NIC, one direction.
        overlaps_levels: whether both levels work at once.

    Source: stas00/ml-engineering, network/README.md (4 GiB on 4 x 8 B200: 16.1 to 26.3 ms, measured 22.05).
    Assumes: no latency.

    >>> round(hierarchical_all_reduce_s(payload_bytes=4 * 2**30, num_nodes=4, gpus_per_node=8,
    ...     node_bandwidth_bytes_per_s=738e9, nic_bandwidth_bytes_per_s=50e9, overlaps_levels=True) * 1e3, 1)
    16.1
    """
    inside_s = 2 * (gpus_per_node - 1) / gpus_per_node * payload_bytes / node_bandwidth_bytes_per_s
    across_s = 2 * (num_nodes - 1) / num_nodes * payload_bytes / gpus_per_node / nic_bandwidth_bytes_per_s
    return max(inside_s, across_s) if overlaps_levels else inside_s + across_s

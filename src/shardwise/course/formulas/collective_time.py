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


def nccl_ring_latency_s(
    *,
    group_size: int,
    num_nodes: int,
    base_latency_s: float,
    node_step_s: float,
    network_step_s: float,
    passes: int = 1,
) -> float:
    """Latency NCCL's tuner gives a ring: base, then a network step per node and a local step for every other rank.

    Args:
        group_size: n.
        num_nodes: k; k - 1 of the n - 1 steps cross the network.
        base_latency_s: launch and set-up.
        node_step_s: one step inside a node.
        network_step_s: one step between nodes.
        passes: 1 for all-gather and reduce-scatter, 2 for all-reduce.

    Source: NVIDIA/nccl, src/graph/tuning.cc (commit 5067397).
    Assumes: one ring that visits node after node.

    >>> round(nccl_ring_latency_s(group_size=1024, num_nodes=128, base_latency_s=8.4e-6, node_step_s=3.4e-6,
    ...     network_step_s=14e-6) * 1e3, 2)
    4.83
    """
    network_steps = num_nodes - 1
    return base_latency_s + passes * (network_steps * network_step_s + (group_size - 1 - network_steps) * node_step_s)


def nccl_tree_latency_s(
    *, gpus_per_node: int, num_nodes: int, base_latency_s: float, node_step_s: float, network_step_s: float
) -> float:
    """Latency NCCL's tuner gives a tree all-reduce: ``base + 2 ((g - 1) intra + log2(k) net)``.

    Source: NVIDIA/nccl, src/graph/tuning.cc (commit 5067397).
    Assumes: a chain inside the node and a binary tree over nodes.

    >>> round(nccl_tree_latency_s(gpus_per_node=8, num_nodes=128, base_latency_s=8.4e-6, node_step_s=4e-6,
    ...     network_step_s=14e-6) * 1e6, 1)
    260.4
    """
    return base_latency_s + 2 * ((gpus_per_node - 1) * node_step_s + log2(num_nodes) * network_step_s)


def in_switch_all_reduce_s(*, payload_bytes: float, group_size: int, bandwidth_bytes_per_s: float) -> float:
    """Bandwidth time of an all-reduce that the switch adds and distributes (NVLS): ``(1 + 1/n) S / B``.

    Every rank reads its n-th reduced by the switch, which draws S from each rank's memory, and sends that n-th to all.

    Source: NVIDIA 2020-2024, NVLink SHARP (``multimem.ld_reduce`` and ``multimem.st`` in PTX ISA 8.1); the volume is
        derived here and fits plateaus of 5 to 8 H200 (0.68 to 0.69 of the line rate) and of 6 to 8 B200 (0.60).
    Assumes: one direction of one GPU's links; no latency.

    >>> round(in_switch_all_reduce_s(payload_bytes=8 * 2**30, group_size=8, bandwidth_bytes_per_s=308e9) * 1e3, 1)
    31.4
    """
    return (1 + 1 / group_size) * payload_bytes / bandwidth_bytes_per_s

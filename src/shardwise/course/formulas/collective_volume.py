"""Bytes one rank sends in each collective; the payload is as in :mod:`shardwise.formulas.collective_volume`."""

from shardwise.formulas.collective_volume import all_gather_factor, all_reduce_factor


def all_reduce_bytes(*, payload_bytes: float, group_size: int) -> float:
    """Bytes one rank sends in an all-reduce.

    Source: Patarasuk and Yuan 2009, JPDC 69(2), section 3; NVIDIA/nccl-tests, doc/PERFORMANCE.md.
    Assumes: a ring: n - 1 reduce-scatter steps and n - 1 all-gather steps of S/n each.

    >>> all_reduce_bytes(payload_bytes=14e9, group_size=8) / 1e9
    24.5
    """
    return payload_bytes * all_reduce_factor(group_size=group_size)


def all_gather_bytes(*, payload_bytes: float, group_size: int) -> float:
    """Bytes one rank sends in an all-gather of a tensor that is S bytes when gathered.

    Source: NVIDIA/nccl-tests, doc/PERFORMANCE.md.
    Assumes: a ring or any other bandwidth-optimal algorithm.

    >>> all_gather_bytes(payload_bytes=16e9, group_size=16) / 1e9
    15.0
    """
    return payload_bytes * all_gather_factor(group_size=group_size)


def ring_all_reduce_steps(*, group_size: int) -> int:
    """Steps of a ring all-reduce: ``2 (n - 1)``.

    Source: Patarasuk and Yuan 2009, JPDC 69(2), section 3.
    Assumes: one piece of S/n per step.

    >>> ring_all_reduce_steps(group_size=8)
    14
    """
    return 2 * (group_size - 1)


def hierarchical_nic_bytes(*, payload_bytes: float, num_nodes: int, gpus_per_node: int) -> float:
    """Bytes each GPU sends through its own NIC in an all-reduce over nodes: ``2 (k - 1) / k * S / g``.

    Source: stas00/ml-engineering, network/README.md; the node reduces first, each GPU carries one g-th across.
    Assumes: one NIC per GPU, all used at once.

    >>> hierarchical_nic_bytes(payload_bytes=4 * 2**30, num_nodes=4, gpus_per_node=8) / 2**30
    0.75
    """
    return 2 * (num_nodes - 1) / num_nodes * payload_bytes / gpus_per_node


def tensor_parallel_layer_bytes(*, num_tokens: int, hidden_size: int, tp: int, element_bytes: int = 2) -> float:
    """Bytes one rank sends for one layer and micro-batch under tensor parallelism: four all-reduces of ``T h``.

    Sequence parallelism splits each into a reduce-scatter and an all-gather of the same total.

    Source: Shoeybi et al. 2019, arXiv:1909.08053, section 3; Korthikanti et al. 2022, arXiv:2205.05198, section 4.2.2.
    Assumes: two column-row pairs per layer; recomputation repeats the two of the forward.

    >>> tensor_parallel_layer_bytes(num_tokens=8192, hidden_size=8192, tp=8) / 1e6
    939.524096
    """
    payload = num_tokens * hidden_size * element_bytes
    return 4 * all_reduce_bytes(payload_bytes=payload, group_size=tp)


def pipeline_boundary_bytes(*, num_tokens: int, hidden_size: int, tp: int = 1, element_bytes: int = 2) -> float:
    """Bytes one rank sends over one stage boundary, one direction, one micro-batch.

    Source: Narayanan et al. 2021, arXiv:2104.04473, sections 2.2 and 4.1 (scatter-gather divides by t).
    Assumes: the activations at the boundary are divided over tensor-parallel ranks when tp > 1.

    >>> pipeline_boundary_bytes(num_tokens=8192, hidden_size=16384, tp=8) / 1e6
    33.554432
    """
    return num_tokens * hidden_size * element_bytes / tp

"""Factors from the payload of a collective to what one rank sends, which is also what bus bandwidth is measured by.

The payload S is the whole tensor: the sum for all-reduce, the gathered result for all-gather, the input for
reduce-scatter, everything one rank sends (its own part included) for all-to-all.
"""


def all_reduce_factor(*, group_size: int) -> float:
    """Bytes sent per rank over payload: ``2 (n - 1) / n``.

    Source: NVIDIA/nccl-tests, doc/PERFORMANCE.md.
    Assumes: a bandwidth-optimal algorithm without in-switch reduction.

    >>> all_reduce_factor(group_size=8)
    1.75
    """
    return 2 * (group_size - 1) / group_size


def all_gather_factor(*, group_size: int) -> float:
    """Bytes sent per rank over payload: ``(n - 1) / n``; the same for reduce-scatter and all-to-all.

    Source: NVIDIA/nccl-tests, doc/PERFORMANCE.md.
    Assumes: the payload is the gathered tensor.

    >>> all_gather_factor(group_size=8)
    0.875
    """
    return (group_size - 1) / group_size


def once_per_node_ratio(*, num_nodes: int, num_experts_per_tok: int) -> float:
    """Messages to nodes over copies to experts, when a token is sent once to every node that holds one of its experts.

    ``k (1 - (1 - 1/k) ^ t) / t``: distinct nodes among t uniform choices of k, over t.

    Args:
        num_nodes: k, nodes that the expert-parallel ranks lie on.
        num_experts_per_tok: t.

    Source: DeepSeek-AI 2024, arXiv:2412.19437, section 3.2.2 (a token is sent over InfiniBand once per node and
        forwarded over NVLink); the expectation is that of the occupancy problem.
    Assumes: experts chosen evenly and independently; group-limited routing touches fewer nodes.

    >>> round(once_per_node_ratio(num_nodes=8, num_experts_per_tok=8), 3)
    0.656
    """
    distinct = num_nodes * (1 - (1 - 1 / num_nodes) ** num_experts_per_tok)
    return distinct / num_experts_per_tok

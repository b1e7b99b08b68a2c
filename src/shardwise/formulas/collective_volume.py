"""Factors from the payload of a collective to what one rank sends, which is also what bus bandwidth is measured by.

The payload S is the whole tensor: the sum for all-reduce, the gathered result for all-gather, the input for
reduce-scatter, everything one rank sends (its own part included) for all-to-all.
"""

from math import comb


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


def once_per_node_ratio(
    *, num_nodes: int, num_experts_per_tok: int, num_groups: int = 1, num_groups_per_tok: int = 1
) -> float:
    """Messages to nodes over copies to experts, when a token is sent once to every node that holds one of its experts.

    ``k (1 - (1 - 1/k) ^ t) / t`` without groups: distinct nodes among t uniform choices of k, over t. A router that
    keeps g of G groups of experts and chooses inside them alone leaves a node that holds n of the g kept groups
    untouched with ``(1 - n/g) ^ t``, n drawn as of G groups without replacement.

    Args:
        num_nodes: k, nodes that the expert-parallel ranks lie on, each with experts that follow one another.
        num_experts_per_tok: t.
        num_groups: G.
        num_groups_per_tok: g.

    Source: DeepSeek-AI 2024, arXiv:2412.19437, sections 2.1.2 (node-limited routing: at most 4 nodes a token) and 3.2.2
        (a token is sent over InfiniBand once per node and forwarded over NVLink); the expectation is that of the
        occupancy problem.
    Assumes: groups, and experts of the kept ones, chosen evenly and independently.

    >>> round(once_per_node_ratio(num_nodes=8, num_experts_per_tok=8), 3)
    0.656
    >>> limited = {"num_experts_per_tok": 8, "num_groups": 8, "num_groups_per_tok": 4}
    >>> [round(8 * once_per_node_ratio(num_nodes=nodes, **limited), 2) for nodes in (8, 4)]
    [3.6, 2.91]
    """
    chosen, groups, kept = num_experts_per_tok, num_groups, num_groups_per_tok
    held = max(1, groups // num_nodes)
    nodes_of_group = max(1, num_nodes // groups)
    untouched = 0.0
    for here in range(min(held, kept) + 1):
        draws = comb(held, here) * comb(groups - held, kept - here) / comb(groups, kept)
        untouched += draws * (1 - here / (kept * nodes_of_group)) ** chosen
    return num_nodes * (1 - untouched) / chosen

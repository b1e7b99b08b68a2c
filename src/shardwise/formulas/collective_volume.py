"""Factors from the payload of a collective to what one rank sends, which is also what bus bandwidth is measured by.

The payload S is the whole tensor: the sum for all-reduce, the gathered result for all-gather, the input for
reduce-scatter, everything one rank sends (its own part included) for all-to-all.
"""

from itertools import compress, product
from math import comb, gcd


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
    untouched with ``(1 - n/g) ^ t``, averaged over the choices of g of G. A node that holds part of a group counts that
    part, so that n need not be whole.

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
    >>> [round(8 * once_per_node_ratio(num_nodes=nodes, **limited), 2) for nodes in (8, 5, 4)]
    [3.6, 3.45, 2.91]
    """
    nodes, groups, kept = num_nodes, num_groups, num_groups_per_tok
    period = nodes // gcd(nodes, groups)  # after so many nodes, nodes and groups begin together again
    touched = 0.0
    for node in range(period):
        for held, share in _held_shares(node, nodes=nodes, groups=groups, kept=kept).items():
            touched += share * (1 - (1 - held / (kept * nodes)) ** num_experts_per_tok)
    return nodes * touched / (period * num_experts_per_tok)


def _held_shares(node: int, *, nodes: int, groups: int, kept: int) -> dict[int, float]:
    """How much of the kept groups a node holds, in parts of which a group has ``nodes``, each with its probability."""
    start, end = node * groups, (node + 1) * groups
    overlaps = [min(end, (group + 1) * nodes) - max(start, group * nodes) for group in range(groups)]
    whole, partial = overlaps.count(nodes), [part for part in overlaps if 0 < part < nodes]
    shares: dict[int, float] = {}
    for taken in product((False, True), repeat=len(partial)):
        for here in range(whole + 1):
            others = kept - here - sum(taken)
            if others >= 0:
                held = here * nodes + sum(compress(partial, taken))
                draws = comb(whole, here) * comb(groups - whole - len(partial), others)
                shares[held] = shares.get(held, 0.0) + draws / comb(groups, kept)
    return shares

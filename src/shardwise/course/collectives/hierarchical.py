"""All-reduce over nodes: inside each node first, then across with one g-th of the payload a rank, then inside again."""

from collections.abc import Iterator

from shardwise.course.collectives.moves import CollectiveProgram, PieceMessage
from shardwise.course.collectives.ring import gathering, reducing
from shardwise.errors import SimulationError


def hierarchical_all_reduce(*, num_ranks: int, ranks_per_node: int) -> CollectiveProgram:
    """Ring reduce-scatter in the node, ring all-reduce between ranks of one place, ring all-gather in the node.

    Source: stas00/ml-engineering, network/README.md; NVIDIA/nccl-tests, doc/PERFORMANCE.md.

    Raises:
        SimulationError: the ranks do not fill whole nodes.
    """
    if num_ranks % ranks_per_node:
        fuller = max(1, num_ranks // ranks_per_node) * ranks_per_node
        raise SimulationError(
            f"{num_ranks} ranks do not fill nodes of {ranks_per_node}",
            code="simulate-size",
            fix=f"use --num-ranks {fuller}",
        )
    num_nodes = num_ranks // ranks_per_node
    shares = [tuple(range(place * num_nodes, (place + 1) * num_nodes)) for place in range(ranks_per_node)]
    nodes = [range(node * ranks_per_node, (node + 1) * ranks_per_node) for node in range(num_nodes)]
    messages: list[PieceMessage] = []
    for members in nodes:
        messages += reducing(members, pieces=shares)
    messages += _across(num_nodes, ranks_per_node, shares)
    for members in nodes:
        messages += gathering(members, pieces=shares)
    return CollectiveProgram(
        name="hierarchical (node, across, node)",
        num_ranks=num_ranks,
        num_pieces=num_ranks,
        messages=tuple(messages),
    )


def _across(num_nodes: int, ranks_per_node: int, shares: list[tuple[int, ...]]) -> Iterator[PieceMessage]:
    """One ring for each place in a node; they do not meet."""
    for place in range(ranks_per_node):
        members = [node * ranks_per_node + place for node in range(num_nodes)]
        pieces = [(piece,) for piece in shares[place]]
        yield from reducing(members, pieces=pieces)
        yield from gathering(members, pieces=pieces)

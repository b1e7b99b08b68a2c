"""All-reduce up and down two binary trees at once, each with half of the payload."""

from collections.abc import Iterator

from shardwise.course.collectives.moves import CollectiveProgram, PieceMessage

Parents = dict[int, int]
"""The parent of every rank but the root."""


def binary_tree(num_ranks: int) -> Parents:
    """In-order binary tree: rank 0 is the root, odd ranks are leaves.

    A rank's distance to its children is half of the lowest power of two in its number, as in NCCL.

    Source: Sanders, Speck and Traff 2009, Parallel Computing 35(12); NVIDIA/nccl, src/graph/trees.cc (ncclGetBtree).

    >>> binary_tree(6)
    {1: 2, 2: 4, 3: 2, 4: 0, 5: 4}
    """
    parents: Parents = {}
    for rank in range(1, num_ranks):
        bit = rank & -rank
        above = (rank ^ bit) | (bit << 1)
        parents[rank] = above if above < num_ranks else rank ^ bit
    return parents


def second_tree(num_ranks: int) -> Parents:
    """Lay the tree over other ranks so that leaves of one are inside the other: mirrored, or shifted by one if odd.

    Source: NVIDIA/nccl, src/graph/trees.cc (ncclGetDtree).

    >>> binary_tree(4), second_tree(4)
    ({1: 2, 2: 0, 3: 2}, {2: 1, 1: 3, 0: 1})
    """
    if num_ranks % 2:
        return {(rank + 1) % num_ranks: (above + 1) % num_ranks for rank, above in binary_tree(num_ranks).items()}
    return {num_ranks - 1 - rank: num_ranks - 1 - above for rank, above in binary_tree(num_ranks).items()}


def tree_depth(parents: Parents) -> int:
    """Edges from the deepest rank to the root."""
    return max((_depth(rank, parents) for rank in parents), default=0)


def _depth(rank: int, parents: Parents) -> int:
    depth = 0
    while rank in parents:
        rank, depth = parents[rank], depth + 1
    return depth


def double_tree_all_reduce(*, num_ranks: int, pieces_per_tree: int) -> CollectiveProgram:
    """Sums flow to the roots and back, piece after piece, so that all levels work at the same time.

    Args:
        num_ranks: n.
        pieces_per_tree: how finely the pipeline is cut; many pieces fill it, each costs a latency.

    Source: Sanders, Speck and Traff 2009, Parallel Computing 35(12).
    """
    trees = (binary_tree(num_ranks), second_tree(num_ranks))
    messages: list[PieceMessage] = []
    for turn in range(pieces_per_tree):
        for number, parents in enumerate(trees):
            messages += _piece(parents, piece=number * pieces_per_tree + turn)
    return CollectiveProgram(
        name="double binary tree",
        num_ranks=num_ranks,
        num_pieces=2 * pieces_per_tree,
        messages=tuple(messages),
    )


def _piece(parents: Parents, *, piece: int) -> Iterator[PieceMessage]:
    """One piece up to the root, deepest ranks first, and down again."""
    deepest_first = sorted(parents, key=lambda rank: -_depth(rank, parents))
    for rank in deepest_first:
        yield PieceMessage(sender=rank, receiver=parents[rank], pieces=(piece,), adds=True)
    for rank in reversed(deepest_first):
        yield PieceMessage(sender=parents[rank], receiver=rank, pieces=(piece,), adds=False)

"""All-reduce by recursive halving and doubling: few steps, each with a partner further away or nearer."""

from collections.abc import Iterator

from shardwise.course.collectives.moves import CollectiveProgram, PieceMessage
from shardwise.errors import SimulationError


def halving_doubling_all_reduce(*, num_ranks: int) -> CollectiveProgram:
    """Partners exchange halves, quarters, ... and add them; then the same backwards: ``2 log2(n)`` steps.

    Source: Thakur et al. 2005, IJHPCA 19(1), section 4.4 (Rabenseifner's algorithm).

    Raises:
        SimulationError: the number of ranks is no power of two.
    """
    if num_ranks & (num_ranks - 1):
        low = 1 << (num_ranks.bit_length() - 1)
        raise SimulationError(
            f"recursive halving needs a power of two of ranks, and {num_ranks} is none",
            code="simulate-size",
            fix=f"use --num-ranks {low} or --num-ranks {2 * low}",
        )
    return CollectiveProgram(
        name="recursive halving-doubling",
        num_ranks=num_ranks,
        num_pieces=num_ranks,
        messages=(*_halving(num_ranks), *_doubling(num_ranks)),
    )


def _halving(num_ranks: int) -> Iterator[PieceMessage]:
    """Each rank keeps the half that its own piece is in, and sends the other to the rank ``distance`` away."""
    distance = num_ranks // 2
    while distance:
        for rank in range(num_ranks):
            partner = rank ^ distance
            first = partner // distance * distance
            yield PieceMessage(sender=rank, receiver=partner, pieces=tuple(range(first, first + distance)), adds=True)
        distance //= 2


def _doubling(num_ranks: int) -> Iterator[PieceMessage]:
    distance = 1
    while distance < num_ranks:
        for rank in range(num_ranks):
            first = rank // distance * distance
            yield PieceMessage(
                sender=rank, receiver=rank ^ distance, pieces=tuple(range(first, first + distance)), adds=False
            )
        distance *= 2

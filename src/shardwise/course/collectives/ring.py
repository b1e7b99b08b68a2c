"""Collectives around a ring: every rank sends to the next and receives from the one before, all at once."""

from collections.abc import Iterator, Sequence

from shardwise.course.collectives.moves import CollectiveProgram, PieceMessage


def ring_reduce_scatter(*, num_ranks: int) -> CollectiveProgram:
    """Each rank ends with the sum of the piece of its own number.

    Source: Patarasuk and Yuan 2009, JPDC 69(2), section 3.
    """
    return CollectiveProgram(
        name="ring reduce-scatter",
        num_ranks=num_ranks,
        num_pieces=num_ranks,
        messages=tuple(reducing(range(num_ranks), pieces=[(piece,) for piece in range(num_ranks)])),
    )


def ring_all_gather(*, num_ranks: int) -> CollectiveProgram:
    """Each rank starts with the piece of its own number and ends with all of them.

    Source: Thakur et al. 2005, IJHPCA 19(1), section 4.1.
    """
    return CollectiveProgram(
        name="ring all-gather",
        num_ranks=num_ranks,
        num_pieces=num_ranks,
        messages=tuple(gathering(range(num_ranks), pieces=[(piece,) for piece in range(num_ranks)])),
    )


def ring_all_reduce(*, num_ranks: int) -> CollectiveProgram:
    """A reduce-scatter, and an all-gather of the sums: ``2 (n - 1)`` steps of ``S / n``.

    Source: Patarasuk and Yuan 2009, JPDC 69(2), section 3.
    """
    members, pieces = range(num_ranks), [(piece,) for piece in range(num_ranks)]
    return CollectiveProgram(
        name="ring all-reduce",
        num_ranks=num_ranks,
        num_pieces=num_ranks,
        messages=(*reducing(members, pieces=pieces), *gathering(members, pieces=pieces)),
    )


def reducing(members: Sequence[int], *, pieces: Sequence[tuple[int, ...]]) -> Iterator[PieceMessage]:
    """Messages after which member i holds the sum of ``pieces[i]``: each group of pieces goes round once."""
    n = len(members)
    for step in range(n - 1):
        for place, sender in enumerate(members):
            group = pieces[(place - step - 1) % n]
            yield PieceMessage(sender=sender, receiver=members[(place + 1) % n], pieces=group, adds=True)


def gathering(members: Sequence[int], *, pieces: Sequence[tuple[int, ...]]) -> Iterator[PieceMessage]:
    """Messages after which every member holds all pieces, when member i begins with ``pieces[i]``."""
    n = len(members)
    for step in range(n - 1):
        for place, sender in enumerate(members):
            group = pieces[(place - step) % n]
            yield PieceMessage(sender=sender, receiver=members[(place + 1) % n], pieces=group, adds=False)

"""All-to-all: every rank has a different piece for every other."""

from shardwise.course.collectives.moves import CollectiveProgram, PieceMessage


def all_to_all(*, num_ranks: int) -> CollectiveProgram:
    """Pairwise: in step k each rank sends to the one k places on; ``n - 1`` steps of ``S / n``.

    Piece ``s * n + r`` is what rank s has for rank r, so there are n x n pieces; a rank's own payload is n of them.

    Source: Thakur et al. 2005, IJHPCA 19(1), section 4.2 (pairwise exchange).
    """
    messages = tuple(
        PieceMessage(
            sender=rank,
            receiver=(rank + step) % num_ranks,
            pieces=(rank * num_ranks + (rank + step) % num_ranks,),
            adds=False,
        )
        for step in range(1, num_ranks)
        for rank in range(num_ranks)
    )
    return CollectiveProgram(
        name="pairwise all-to-all",
        num_ranks=num_ranks,
        num_pieces=num_ranks * num_ranks,
        messages=messages,
        is_exchange=True,
    )

"""What every member of a group receives from a collective, and how many bytes it sends for that on a ring.

The pieces of a ring travel from neighbour to neighbour: in a reduce-scatter a member passes on every piece but the one
that it ends with, in an all-gather every piece but the one that its successor began with. For even pieces both are
``(n - 1) / n`` of the payload; an all-reduce is one after the other.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shardwise.course.numerics.arrays import Array, Arrays, even_pieces
from shardwise.course.numerics.held import total_bytes
from shardwise.step.inventory import CollectiveKind
from shardwise.units import Bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a collective is for one member."""

    received: Arrays
    payload_bytes: Bytes
    """The full tensor of all-gather, reduce-scatter and all-reduce; everything one member sends of an all-to-all."""
    sent_bytes: Bytes


def exchange(kind: CollectiveKind, brought: Sequence[Arrays], *, is_maximum: bool = False) -> tuple[Outcome, ...]:
    """The outcome for every member of a group.

    Args:
        kind: of the collective; a ``send_recv`` of a whole group passes everything on to the next member.
        brought: by each member: one array, or as many pieces as members for reduce-scatter and all-to-all.
        is_maximum: reduce by the largest value instead of the sum.

    >>> [one.sent_bytes for one in exchange("all_reduce", [(np.ones(4),), (np.ones(4),)])]
    [32, 32]
    """
    if kind == "all_reduce":
        return _all_reduce([arrays[0] for arrays in brought], is_maximum=is_maximum)
    if kind == "all_gather":
        return _all_gather([arrays[0] for arrays in brought])
    if kind == "reduce_scatter":
        return _reduce_scatter(brought)
    if kind == "broadcast":
        return _broadcast(brought)
    if kind == "all_to_all":
        return _all_to_all(brought)
    return _shift(brought)


def _sum(arrays: Sequence[Array]) -> Array:
    """Added in the order of the members: every member gets the same bits."""
    total = arrays[0].copy()
    for array in arrays[1:]:
        total += array
    return total


def _all_reduce(arrays: Sequence[Array], *, is_maximum: bool) -> tuple[Outcome, ...]:
    reduced = np.maximum.reduce(list(arrays)) if is_maximum else _sum(arrays)
    size, item = len(arrays), reduced.itemsize
    pieces = [item * (piece.stop - piece.start) for piece in even_pieces(reduced.size, size)]
    return tuple(
        Outcome(
            received=(reduced.copy(),),
            payload_bytes=reduced.nbytes,
            sent_bytes=2 * reduced.nbytes - pieces[member] - pieces[(member + 1) % size],
        )
        for member in range(size)
    )


def _all_gather(arrays: Sequence[Array]) -> tuple[Outcome, ...]:
    whole = total_bytes(arrays)
    successors = (*arrays[1:], arrays[0])
    return tuple(
        Outcome(received=tuple(arrays), payload_bytes=whole, sent_bytes=whole - successor.nbytes)
        for successor in successors
    )


def _reduce_scatter(brought: Sequence[Arrays]) -> tuple[Outcome, ...]:
    sums = [_sum(pieces) for pieces in zip(*brought, strict=True)]
    whole = total_bytes(sums)
    return tuple(Outcome(received=(piece,), payload_bytes=whole, sent_bytes=whole - piece.nbytes) for piece in sums)


def _broadcast(brought: Sequence[Arrays]) -> tuple[Outcome, ...]:
    """The one member that brings something gives it to all; on a ring all but the last pass it on."""
    root = next(member for member, arrays in enumerate(brought) if arrays)
    arrays = brought[root]
    whole = total_bytes(arrays)
    last = (root - 1) % len(brought)
    return tuple(
        Outcome(received=arrays, payload_bytes=whole, sent_bytes=0 if member == last else whole)
        for member in range(len(brought))
    )


def _all_to_all(brought: Sequence[Arrays]) -> tuple[Outcome, ...]:
    return tuple(
        Outcome(
            received=tuple(pieces[member] for pieces in brought),
            payload_bytes=total_bytes(brought[member]),
            sent_bytes=total_bytes(brought[member]) - brought[member][member].nbytes,
        )
        for member in range(len(brought))
    )


def _shift(brought: Sequence[Arrays]) -> tuple[Outcome, ...]:
    return tuple(
        Outcome(
            received=brought[member - 1],
            payload_bytes=total_bytes(brought[member]),
            sent_bytes=total_bytes(brought[member]),
        )
        for member in range(len(brought))
    )

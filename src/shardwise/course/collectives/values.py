"""A collective carried out on numbers, so that its result can be compared with the sum or the concatenation."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shardwise.course.collectives.moves import CollectiveProgram

Held = dict[tuple[int, int], NDArray[np.floating]]
"""The values that each rank holds of each piece; a piece that a rank does not have is absent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundState:
    """The numbers after one round, and the ranks whose contribution each piece contains."""

    round_index: int
    held: Held
    contributors: dict[tuple[int, int], tuple[int, ...]]


def run_on_values(program: CollectiveProgram, start: Held) -> Iterator[RoundState]:
    """The state after every round; all messages of a round are read before any of them is written."""
    held = dict(start)
    contributors: dict[tuple[int, int], tuple[int, ...]] = {place: (place[0],) for place in held}
    for round_index, indices in enumerate(program.rounds):
        arrived = [
            (program.messages[index], piece, held[program.messages[index].sender, piece],
             contributors[program.messages[index].sender, piece])
            for index in indices
            for piece in program.messages[index].pieces
        ]  # fmt: skip
        for message, piece, number, origins in arrived:
            place = (message.receiver, piece)
            is_sum = message.adds and place in held
            held[place] = held[place] + number if is_sum else number
            contributors[place] = tuple(sorted(contributors[place] + origins)) if is_sum else origins
        yield RoundState(round_index=round_index, held=dict(held), contributors=dict(contributors))


def final_state(program: CollectiveProgram, start: Held) -> RoundState:
    """The state after the last round."""
    state = RoundState(round_index=-1, held=dict(start), contributors={place: (place[0],) for place in start})
    for after in run_on_values(program, start):
        state = after
    return state


def contributions(*, num_ranks: int, num_pieces: int, size: int, seed: int) -> NDArray[np.float64]:
    """Numbers of every rank, shaped ``(rank, piece, size)``: whole ones, so that sums are exact in any order."""
    generator = np.random.default_rng(seed)
    return generator.integers(-1000, 1000, size=(num_ranks, num_pieces, size)).astype(np.float64)


def everything(numbers: NDArray[np.floating]) -> Held:
    """Each rank holds all pieces of its own: where an all-reduce and a reduce-scatter begin."""
    num_ranks, num_pieces, _ = numbers.shape
    return {(rank, piece): numbers[rank, piece] for rank in range(num_ranks) for piece in range(num_pieces)}


def own_pieces(numbers: NDArray[np.floating]) -> Held:
    """Each rank holds the piece of its number: where an all-gather begins."""
    return {(rank, rank): numbers[rank, rank] for rank in range(numbers.shape[0])}

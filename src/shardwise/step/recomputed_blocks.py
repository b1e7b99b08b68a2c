"""Which blocks of a stage are recomputed when only some are, and the runs of blocks that memory therefore tells apart.

Backward goes from the last block to the first. What the recomputed block nearest to the end brings back meets what all
blocks before it keep; blocks behind it are gone by then. So a run of equal blocks is cut behind that block.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil

from shardwise.engines.profile import PartialRecompute
from shardwise.model import LayerSpec
from shardwise.step.layer_placement import Runs


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldRun:
    """Consecutive identical blocks of a stage of which the last one is recomputed, or none is."""

    layer: LayerSpec
    count: int
    num_recomputed: int
    """Blocks of these ``count`` that are recomputed in backward; the others keep all they need for it."""


def recomputed_positions(
    *, chunk_layers: Sequence[int], num_recomputed: int, order: PartialRecompute
) -> tuple[bool, ...]:
    """Whether each block of a stage is recomputed, in model order.

    Args:
        chunk_layers: blocks of each chunk that the stage holds.
        num_recomputed: blocks of the stage to recompute; of each chunk its share, rounded up, where chunks are alike.
        order: which of them the engine takes.

    >>> recomputed_positions(chunk_layers=(3, 3), num_recomputed=2, order="first of stage")
    (True, True, False, False, False, False)
    >>> recomputed_positions(chunk_layers=(3, 3), num_recomputed=2, order="first of chunk")
    (True, False, False, True, False, False)
    >>> recomputed_positions(chunk_layers=(6,), num_recomputed=2, order="every")
    (False, False, True, False, False, True)
    """
    num_layers = sum(chunk_layers)
    asked = min(num_recomputed, num_layers)
    if order == "first of chunk":
        shares = ((count, ceil(asked * count / max(1, num_layers))) for count in chunk_layers)
        return tuple(position < share for count, share in shares for position in range(count))
    if order == "every":
        chosen = {(number + 1) * num_layers // asked - 1 for number in range(asked)}
        return tuple(position in chosen for position in range(num_layers))
    return tuple(position < asked for position in range(num_layers))


def held_runs(layer_runs: Runs, recomputed: Sequence[bool]) -> Iterator[HeldRun]:
    """The runs of a stage, each cut behind the last of its blocks that is recomputed.

    Args:
        layer_runs: runs of identical blocks.
        recomputed: whether each block is recomputed (:func:`recomputed_positions`).
    """
    start = 0
    for layer, count in layer_runs:
        chosen = recomputed[start : start + count]
        start += count
        size = max((position + 1 for position, is_recomputed in enumerate(chosen) if is_recomputed), default=0)
        for part, num_recomputed in ((size, sum(chosen)), (count - size, 0)):
            if part:
                yield HeldRun(layer=layer, count=part, num_recomputed=num_recomputed)

"""Which blocks of a stage are recomputed in every row."""

from dataclasses import dataclass

import numpy as np

from shardwise.engines.profile import PartialRecompute
from shardwise.search.candidates import FloatColumn, IntColumn, Mask
from shardwise.step.recomputed_blocks import recomputed_positions

__all__ = ["Recomputed", "StageOrder", "recomputed_counts"]


@dataclass(frozen=True, slots=True)
class StageOrder:
    """The blocks of a stage in model order."""

    shapes: tuple[int, ...]
    """The shape of each."""
    chunk_layers: tuple[int, ...]


def recomputed_counts(
    order: StageOrder, *, num_recomputed: int, num_shapes: int, engine_order: PartialRecompute
) -> tuple[float, ...]:
    """Blocks of every shape that are recomputed, those behind the last of them, and which shape that one has.

    >>> order = StageOrder(shapes=(0, 1, 1, 1), chunk_layers=(4,))
    >>> recomputed_counts(order, num_recomputed=2, num_shapes=2, engine_order="first of stage")
    (1.0, 1.0, 0.0, 2.0, 1.0)
    """
    again = recomputed_positions(chunk_layers=order.chunk_layers, num_recomputed=num_recomputed, order=engine_order)
    last = max((position for position, is_again in enumerate(again) if is_again), default=-1)
    chosen = [shape for shape, is_again in zip(order.shapes, again, strict=True) if is_again]
    counts = [chosen.count(shape) for shape in range(num_shapes)]
    behind = [order.shapes[last + 1 :].count(shape) for shape in range(num_shapes)]
    return tuple(map(float, (*counts, *behind, order.shapes[last] if last >= 0 else 0)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Recomputed:
    """Of one watched stage of every row; blocks are ``(rows, distinct block shapes)``."""

    blocks: FloatColumn
    """Those that are recomputed."""
    behind: FloatColumn
    """Kept ones behind the last of these: all where none is."""
    last_shape: IntColumn
    """Shape of the last recomputed one."""

    @property
    def is_cut(self) -> Mask:
        """Rows where the last recomputed block is not the last of the stage."""
        is_cut: Mask = (self.blocks.sum(axis=1) > 0) & (self.behind.sum(axis=1) > 0)
        return is_cut

    def place(self, blocks: FloatColumn) -> FloatColumn:
        """Which of a stage's blocks the last recomputed one is, counted from the first of its own shape, sorted by
        shape.

        Args:
            blocks: of the stage.
        """
        before = np.cumsum(blocks, axis=1) - blocks
        up_to = (blocks - self.behind).sum(axis=1)
        place: FloatColumn = up_to - np.take_along_axis(before, self.last_shape[:, None], axis=1)[:, 0]
        return place

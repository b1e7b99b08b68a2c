"""What the stages of all rows hold while they go backward, block shape by block shape."""

from dataclasses import dataclass

import numpy as np

from shardwise.search.candidates import FloatColumn, IntColumn, take_rows
from shardwise.search.memory_moments import HEAD, OF_SHAPE
from shardwise.search.partial_recompute import Recomputed
from shardwise.search.probes import WatchedStage

__all__ = ["Backward", "KeptInBackward", "kept_in_backward", "most_in_blocks"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptInBackward:
    """Bytes of a micro-batch that the blocks of each shape keep: ``(rows, shapes)``."""

    at_end: FloatColumn
    """When forward ends."""
    after_first: FloatColumn
    """When the first one to go backward is through."""
    in_last: FloatColumn
    """Inside the last one to go backward."""
    behind: FloatColumn
    """Of what there is at the end, that of blocks behind the last recomputed one."""
    one_behind: FloatColumn
    """Of these inside the last one to go backward."""


def kept_in_backward(
    recomputed: Recomputed, *, blocks: FloatColumn, kept: FloatColumn, whole: FloatColumn, resident: FloatColumn
) -> KeptInBackward:
    """What blocks keep on the device on the way through backward.

    Args:
        recomputed: which blocks are.
        blocks: of the stage.
        kept: by one block of each shape that is recomputed, wherever it is.
        whole: by one that is not.
        resident: ``(rows, 1)``: share of what is kept that stays on the device.
    """
    num_front = blocks - recomputed.behind
    front = recomputed.blocks * kept + (num_front - recomputed.blocks) * whole
    one = front / np.maximum(1, num_front)
    front, behind = front * resident, recomputed.behind * whole * resident
    one_behind = np.minimum(behind, whole)
    in_last = np.where(num_front > 0, np.minimum(front, one), one_behind)
    after_first = np.where(
        recomputed.behind > 0,
        front + np.where(recomputed.behind > 1, one_behind, 0.0),
        np.where(blocks > 1, in_last, 0.0),
    )
    return KeptInBackward(
        at_end=front + behind, after_first=after_first, in_last=in_last, behind=behind, one_behind=one_behind
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Backward:
    """What a stage holds beside states and buffers while it goes backward: columns of rows, or ``(rows, shapes)``."""

    during: FloatColumn
    """Of other micro-batches, and messages."""
    kept: KeptInBackward
    live: FloatColumn
    """Brought back inside a recomputed block, of shapes that have any."""
    working: FloatColumn
    born: FloatColumn
    """Gradients that are there before."""
    of_blocks: FloatColumn
    """Those that appear with every block, all blocks of a shape together."""

    def take(self, chosen: IntColumn) -> "Backward":
        """Of some of the rows."""
        return Backward(
            during=self.during[chosen],
            kept=take_rows(self.kept, chosen),
            live=self.live[chosen],
            working=self.working[chosen],
            born=self.born[chosen],
            of_blocks=self.of_blocks[chosen],
        )

    def around_last_recomputed(self, blocks: FloatColumn, recomputed: Recomputed) -> FloatColumn:
        """``(4, rows)``: what is held inside the last kept block behind the first recomputed one that goes backward,
        and before, inside and after that one.

        Args:
            blocks: of the stage.
            recomputed: which of them are.
        """

        def there(of_shapes: FloatColumn) -> FloatColumn:
            return np.take_along_axis(of_shapes, recomputed.last_shape[:, None], axis=1)[:, 0]

        each = self.of_blocks / np.maximum(1, blocks)
        front = self.kept.at_end - self.kept.behind
        through = front - np.where(blocks - recomputed.behind > 1, self.kept.in_last, 0.0)
        before = self.during + front.sum(axis=1) + self.born + (each * recomputed.behind).sum(axis=1)
        inside = before + there(self.live + self.working)
        own = np.where(recomputed.behind > 0, self.kept.one_behind + self.working - each, -np.inf)
        return np.stack([before + own.max(axis=1), before, inside, before - there(through) + there(each)])


def most_in_blocks(
    stage: WatchedStage, backward: Backward, recomputed: Recomputed, buffers: FloatColumn
) -> tuple[FloatColumn, FloatColumn]:
    """The most that is held in the backward of the first and the last block of each shape, but for a first recomputed
    one behind which others are kept; and what the very first block adds."""
    kept, born = backward.kept, backward.born
    highest, in_first = np.zeros(len(born)), np.zeros(len(born))
    earlier = np.cumsum(kept.at_end, axis=1) - kept.at_end
    inside_first = backward.working + np.where(recomputed.behind == 0, backward.live, 0.0)
    inside_last = backward.working + backward.live
    is_first = np.ones(len(born), dtype=np.bool_)
    for shape in reversed(range(stage.blocks.shape[1])):
        is_held = stage.blocks[:, shape] > 0
        first, after, final, done = buffers[HEAD + OF_SHAPE * shape : HEAD + OF_SHAPE * (shape + 1)]
        of_shape = backward.of_blocks[:, shape]
        each = of_shape / np.maximum(1, stage.blocks[:, shape])
        before = backward.during + earlier[:, shape] + born
        at = np.stack(
            [
                before + kept.at_end[:, shape] + inside_first[:, shape] + first,
                before + kept.after_first[:, shape] + after + each,
                before + kept.in_last[:, shape] + inside_last[:, shape] + final + of_shape - each,
                before + done + of_shape,
            ]
        )
        highest = np.maximum(highest, np.where(is_held, at.max(axis=0), 0.0))
        born = born + of_shape
        in_first = np.where(is_first & is_held, inside_first[:, shape], in_first)
        is_first &= ~is_held
    return highest, in_first

"""The moments of one step at which a stage's memory is looked at.

Between two moments of one run of identical blocks memory changes linearly, so its first and last block suffice. Where
a pipeline runs all its forward passes first, the backward is that of the first micro-batch: activations are most and
gradients come with it. Two more moments then say what the second micro-batch meets.
"""

from dataclasses import dataclass, replace
from functools import lru_cache

from shardwise.step.inventory import Moment


@dataclass(frozen=True, slots=True, kw_only=True)
class RunMoments:
    """The backward of one run of identical blocks: inside and just after its first and its last executed block."""

    first_backward: int
    after_first: int
    last_backward: int
    after_last: int
    again: int | None = None
    """Moment inside the first block's backward of the second micro-batch; ``None`` where it is no moment of its own."""

    @property
    def is_one_block(self) -> bool:
        """Whether the first block to go backward is also the last."""
        return self.first_backward == self.last_backward

    @property
    def inside(self) -> tuple[int, ...]:
        """Moments inside a block's backward; one when the run is a single block."""
        moments = (self.first_backward, self.last_backward, self.again)
        return tuple(dict.fromkeys(moment for moment in moments if moment is not None))

    @property
    def after(self) -> tuple[int, ...]:
        """Moments just after a block's backward."""
        return tuple(dict.fromkeys((self.after_first, self.after_last)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """Moment indices in the order of the step."""

    moments: tuple[Moment, ...]
    forward: int
    loss_forward: int
    loss_backward: int
    head_backward: int
    """Moment of the head's gradients, after the loss. Without a head all three are the last forward moment."""
    runs: tuple[RunMoments, ...]
    """Backward moments of each run of blocks, in model order."""
    first_backward_end: int
    """Moment at which one micro-batch has gone backward and others wait; where there is none, the end of backward."""
    backward_end: int
    optimizer: int

    @property
    def spans_of_backward(self) -> tuple[tuple[int, int], ...]:
        """From inside the first block's backward of every run to inside its last one's, of every micro-batch in it."""
        spans = [(run.first_backward, run.last_backward) for run in self.runs]
        return (*spans, *((run.again, run.again) for run in self.runs if run.again is not None))

    @property
    def last(self) -> int:
        """Index of the last moment."""
        return len(self.moments) - 1


@lru_cache(maxsize=256)
def stage_timeline(counts: tuple[int, ...], *, has_head: bool, forwards_come_first: bool = False) -> Timeline:
    """Lay out load, forward, loss, backward of every run in reverse, optimizer step and checkpoint.

    Args:
        counts: blocks of each run, in model order; few stages differ in them.
        has_head: whether the stage computes the loss.
        forwards_come_first: whether several micro-batches wait when the first one goes backward.
    """
    moments = [Moment(phase="load", name="load"), Moment(phase="forward", name="forward of the last block")]
    loss_forward = loss_backward = head_backward = 1
    if has_head:
        moments += [
            Moment(phase="loss", name="loss"),
            Moment(phase="backward", name="backward of the loss"),
            Moment(phase="backward", name="backward of the head"),
        ]
        loss_forward, loss_backward, head_backward = 2, 3, 4
    spans: list[RunMoments] = []
    number = num_layers = sum(counts)
    for count in reversed(counts):
        first = _add_block(moments, number, num_layers)
        last = _add_block(moments, number - count + 1, num_layers) if count > 1 else first
        number -= count
        spans.append(RunMoments(first_backward=first, after_first=first + 1, last_backward=last, after_last=last + 1))
    first_backward_end = len(moments)
    if forwards_come_first:
        moments.append(Moment(phase="backward", name="end of the first micro-batch's backward"))
        if spans:
            spans[0] = replace(spans[0], again=len(moments))
        moments.append(Moment(phase="backward", name=f"backward of block {num_layers} in the second micro-batch"))
    backward_end = len(moments)
    moments += [
        Moment(phase="backward", name="end of backward"),
        Moment(phase="optimizer", name="optimizer step"),
        Moment(phase="save", name="save of a checkpoint"),
    ]
    return Timeline(
        moments=tuple(moments),
        forward=1,
        loss_forward=loss_forward,
        loss_backward=loss_backward,
        head_backward=head_backward,
        runs=tuple(reversed(spans)),
        first_backward_end=first_backward_end,
        backward_end=backward_end,
        optimizer=backward_end + 1,
    )


def _add_block(moments: list[Moment], number: int, num_layers: int) -> int:
    """Append the moments inside and just after the backward of one block; returns the index of the first."""
    where = f"block {number} of {num_layers}"
    moments.append(Moment(phase="backward", name=f"backward of {where}"))
    moments.append(Moment(phase="backward", name=f"reduction after {where}"))
    return len(moments) - 2

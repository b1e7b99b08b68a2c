"""The moments of one step at which a stage's memory is looked at.

Between two moments of one run of identical blocks memory changes linearly, so its first and last block suffice.
"""

from dataclasses import dataclass

from shardwise.step.inventory import Moment
from shardwise.step.placement import Stage


@dataclass(frozen=True, slots=True, kw_only=True)
class RunMoments:
    """The backward of one run of identical blocks: inside and just after its first and its last executed block."""

    first_backward: int
    after_first: int
    last_backward: int
    after_last: int

    @property
    def inside(self) -> tuple[int, ...]:
        """Moments inside a block's backward; one when the run is a single block."""
        return tuple(dict.fromkeys((self.first_backward, self.last_backward)))

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
    """After the loss: the head's own gradients. All three lie on the last forward moment when the stage has no head."""
    runs: tuple[RunMoments, ...]
    """One per run of blocks, in model order."""
    backward_end: int
    optimizer: int
    checkpoint: int

    @property
    def last(self) -> int:
        """Index of the last moment."""
        return len(self.moments) - 1


def stage_timeline(stage: Stage) -> Timeline:
    """Lay out load, forward, loss, backward of every run in reverse, optimizer step and checkpoint."""
    moments = [Moment(phase="load", name="load"), Moment(phase="forward", name="forward of the last block")]
    loss_forward = loss_backward = head_backward = 1
    if stage.has_head:
        moments += [
            Moment(phase="loss", name="loss"),
            Moment(phase="backward", name="backward of the loss"),
            Moment(phase="backward", name="backward of the head"),
        ]
        loss_forward, loss_backward, head_backward = 2, 3, 4
    spans: list[RunMoments] = []
    number = stage.num_layers
    for _, count in reversed(stage.layer_runs):
        first = _add_block(moments, number, stage)
        last = _add_block(moments, number - count + 1, stage) if count > 1 else first
        number -= count
        spans.append(RunMoments(first_backward=first, after_first=first + 1, last_backward=last, after_last=last + 1))
    backward_end = len(moments)
    moments += [
        Moment(phase="backward", name="end of backward"),
        Moment(phase="optimizer", name="optimizer step"),
        Moment(phase="checkpoint", name="checkpoint"),
    ]
    return Timeline(
        moments=tuple(moments),
        forward=1,
        loss_forward=loss_forward,
        loss_backward=loss_backward,
        head_backward=head_backward,
        runs=tuple(reversed(spans)),
        backward_end=backward_end,
        optimizer=backward_end + 1,
        checkpoint=backward_end + 2,
    )


def _add_block(moments: list[Moment], number: int, stage: Stage) -> int:
    """Append the moments inside and just after the backward of one block; the index of the first."""
    where = f"block {number} of {stage.num_layers}"
    moments.append(Moment(phase="backward", name=f"backward of {where}"))
    moments.append(Moment(phase="backward", name=f"reduction after {where}"))
    return len(moments) - 2

"""The moments of a stage at which its memory can be highest, and what is alive then."""

from collections.abc import Iterator, Sequence

from shardwise.step.buffers import buffer_tensors
from shardwise.step.inventory import Tensor
from shardwise.step.stage_context import StageContext

__all__ = ["HEAD", "OF_SHAPE", "TAIL", "alive_bytes", "exchanged_bytes", "watched_moments"]

TAIL = 4
"""Moments after the last block's backward: the end of the first micro-batch's, a block's of the second one, the end of
all backward, and the optimizer."""
HEAD = 4
"""Moments before the first block's backward: end of forward, loss, its backward, the head's."""
OF_SHAPE = 4
"""Moments of each shape: inside and after the backward of its first and its last block."""


def watched_moments(context: StageContext, blocks: Sequence[int]) -> Iterator[int]:
    """The moments that are looked at; shapes a stage does not hold repeat the end of forward."""
    timeline = context.timeline
    yield from (timeline.forward, timeline.loss_forward, timeline.loss_backward, timeline.head_backward)
    held = [shape for shape, count in enumerate(blocks) if count]
    for shape, count in enumerate(blocks):
        if not count:
            yield from (timeline.forward,) * OF_SHAPE
            continue
        # Of a shape that is cut the last part goes backward first.
        runs = [
            moments
            for run, moments in zip(context.held_runs, timeline.runs, strict=True)
            if held[run.position] == shape
        ]
        yield from (runs[-1].first_backward, runs[-1].after_first, runs[0].last_backward, runs[0].after_last)
    last = timeline.runs[-1] if timeline.runs else None
    again = last.again if last is not None and last.again is not None else timeline.first_backward_end
    yield from (timeline.first_backward_end, again, timeline.backward_end, timeline.optimizer)


def alive_bytes(tensors: Sequence[Tensor], at: Sequence[int]) -> tuple[float, ...]:
    """What tensors hold at each of some moments."""
    return tuple(float(sum(t.num_bytes for t in tensors if t.born <= moment <= t.dies)) for moment in at)


def exchanged_bytes(context: StageContext) -> list[float]:
    """Buffers inside the backward of one block of each shape that grow with the tokens."""
    tensors = [tensor for tensor in buffer_tensors(context) if tensor.name == "exchange buffers"]
    return list(alive_bytes(tensors, [run.first_backward for run in context.timeline.runs]))

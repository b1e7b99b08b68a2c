"""When in a backward pass the gradients of a unit appear."""

from shardwise.columns import given, negated
from shardwise.step.stage_context import StageContext, Unit
from shardwise.step.timeline import RunMoments
from shardwise.units import Bytes


def gradient_first_uses(context: StageContext, unit: Unit, num_bytes: Bytes) -> tuple[tuple[Bytes, int], ...]:
    """Parts of a unit's gradients with the moment each appears.

    A block's own gradients appear while its activations go: they are counted from the moment after it. Cast from a
    low-precision gradient, the head's appears only after the head's backward; under FSDP it waits for the root unit,
    where it is no unit of its own.
    """
    timeline = context.timeline
    if not unit.is_block:
        waits = context.gathers_parameters & (context.vocabulary_ranks == 1) & (not context.wraps_ends)
        head = context.each(_share, num_bytes, context.head_elements, unit.base.full) * negated(waits)
        is_cast = (context.states.compute_bytes < context.states.gradient_bytes) & negated(context.keeps_halves)
        return (
            (given(negated(is_cast), head), timeline.head_backward),
            (given(is_cast, head), timeline.head_backward + 1),
            (num_bytes - head, timeline.first_backward_end),
        )
    return first_uses_by_block(timeline.runs[unit.run], unit.count, num_bytes)


def _share(num_bytes: Bytes, part: int, whole: int) -> Bytes:
    """The bytes of a part: a product that only whole numbers hold exactly."""
    return num_bytes * part // max(1, whole)


def first_uses_by_block(moments: RunMoments, count: int, num_bytes: Bytes) -> tuple[tuple[Bytes, int], ...]:
    """Parts of what appears after the backward of each of ``count`` equal blocks of a run, with their moments."""
    if moments.is_one_block:
        return ((num_bytes, moments.after_last),)
    one = num_bytes // count
    return (
        (one, moments.after_first),
        (num_bytes - 2 * one, moments.last_backward),
        (one, moments.after_last),
    )

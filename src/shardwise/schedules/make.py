"""The schedule of a name and its degrees."""

from dataclasses import replace
from functools import lru_cache

from shardwise.errors import LayoutError
from shardwise.schedules.one_forward_one_backward import even_round_size
from shardwise.schedules.shape import PipelineSchedule, ScheduleShape
from shardwise.schedules.table import SCHEDULE_KINDS


@lru_cache(maxsize=128)
def make_schedule(asked: ScheduleShape, /) -> PipelineSchedule:
    """The order of every rank.

    >>> from shardwise.schedules.actions import order_text
    >>> order_text(make_schedule(ScheduleShape(name="1f1b", pp=2, num_microbatches=3)).orders[0])
    '0F0 0F1 0B0 0F2 0B1 0B2'
    """
    shape = settled(asked)
    kind = SCHEDULE_KINDS[shape.name]
    return PipelineSchedule(
        shape=shape,
        placement=kind.placement,
        orders=tuple(kind.order(rank, shape.degrees) for rank in range(shape.pp)),
        model_copies=kind.model_copies,
    )


def repeats_after(shape: ScheduleShape) -> int:
    """Micro-batches after which a long order of a settled shape repeats; 0 when it never does.

    DualPipe's orders do, but in both directions at once, which nobody looks for.
    """
    kind = SCHEDULE_KINDS[shape.name]
    if kind.runs_forwards_first or kind.model_copies > 1:
        return 0
    in_rounds = kind.runs_in_rounds and shape.vpp > 1
    return (shape.num_microbatches_per_round or 0) if in_rounds else 1


def settled(asked: ScheduleShape) -> ScheduleShape:
    """Fill in the chunks and the micro-batches per round that a schedule takes.

    Raises:
        LayoutError: no order can be written for these numbers.
    """
    vpp = SCHEDULE_KINDS[asked.name].num_chunks or asked.vpp
    _check_range(replace(asked, vpp=vpp))
    share = even_round_size(pp=asked.pp, num_microbatches=asked.num_microbatches)
    shape = replace(asked, vpp=vpp, num_microbatches_per_round=asked.num_microbatches_per_round or share)
    _check_microbatches(shape)
    return shape


def _check_range(shape: ScheduleShape) -> None:
    """Refuse degrees below one."""
    per_round = 1 if shape.num_microbatches_per_round is None else shape.num_microbatches_per_round
    if min(shape.pp, shape.vpp, shape.num_microbatches, per_round) < 1 or shape.num_extra_warmup < 0:
        raise LayoutError(
            f"a pipeline of pp={shape.pp}, vpp={shape.vpp} and {shape.num_microbatches} micro-batches in rounds of "
            f"{shape.num_microbatches_per_round} has a number below 1",
            code="schedule-range",
            fix="give every number as 1 or more",
        )


def _check_microbatches(shape: ScheduleShape) -> None:
    """Refuse numbers of micro-batches that the order cannot be written for."""
    kind, name, pp, m = SCHEDULE_KINDS[shape.name], shape.name, shape.pp, shape.num_microbatches
    if kind.model_copies > 1 and (pp % 2 or m % 2 or m < 2 * pp):
        raise LayoutError(
            f"{name} runs micro-batches from both ends: it needs an even pp and an even number of at least 2 pp of "
            f"them, but pp={pp} and there are {m}",
            code="schedule-microbatches",
            fix=f"use {2 * pp if m < 2 * pp else m + m % 2} micro-batches on {pp + pp % 2} ranks",
        )
    if kind.overlaps_passes and m < 2 * pp:
        raise LayoutError(
            f"{name} needs 2 pp = {2 * pp} micro-batches, but there are {m}",
            code="schedule-microbatches",
            fix=f"use {2 * pp} micro-batches or more",
        )
    per_round = shape.num_microbatches_per_round or m
    rest = m % per_round
    if kind.runs_in_rounds and shape.vpp > 1 and 0 < rest < pp and per_round < m:
        raise LayoutError(
            f"rounds of {per_round} leave {rest} of {m} micro-batches, fewer than pp={pp} ranks, which neither torch "
            "nor Megatron runs",
            code="schedule-microbatches",
            fix=f"use {m - rest} micro-batches",
        )

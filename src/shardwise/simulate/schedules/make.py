"""The schedule of a name and its degrees."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Literal

from shardwise.errors import LayoutError
from shardwise.layout import Layout
from shardwise.simulate.schedules.actions import Order, PipelineSchedule, ScheduleName, ScheduleShape
from shardwise.simulate.schedules.fill_and_drain import gpipe_order, looped_bfs_order
from shardwise.simulate.schedules.one_forward_one_backward import (
    even_round_size,
    interleaved_order,
    one_f_one_b_order,
)
from shardwise.simulate.schedules.v_shaped import dualpipe_order, dualpipev_order, zbv_order
from shardwise.simulate.schedules.zero_bubble import zb_h1_order, zb_h2_order

V_SHAPED: tuple[ScheduleName, ...] = ("zbv", "dualpipev", "dualpipe")
ONE_CHUNK: tuple[ScheduleName, ...] = ("gpipe", "1f1b", "zb-h2")
NEVER_REPEATS: tuple[ScheduleName, ...] = ("gpipe", "looped-bfs", "dualpipe")
"""DualPipe's orders do, but in both directions at once, which nobody looks for."""
IN_ROUNDS: tuple[ScheduleName, ...] = ("interleaved", "zb-h1")
ORDER_OF: Mapping[ScheduleName, Callable[[int, ScheduleShape], Order]] = {
    "gpipe": gpipe_order,
    "1f1b": one_f_one_b_order,
    "looped-bfs": looped_bfs_order,
    "interleaved": interleaved_order,
    "zb-h1": zb_h1_order,
    "zb-h2": zb_h2_order,
    "zbv": zbv_order,
    "dualpipev": dualpipev_order,
    "dualpipe": dualpipe_order,
}


@lru_cache(maxsize=128)
def make_schedule(asked: ScheduleShape, /) -> PipelineSchedule:
    """The order of every rank.

    >>> from shardwise.simulate.schedules.actions import order_text
    >>> order_text(make_schedule(ScheduleShape(name="1f1b", pp=2, num_microbatches=3)).orders[0])
    '0F0 0F1 0B0 0F2 0B1 0B2'
    """
    shape = settled(asked)
    return PipelineSchedule(
        shape=shape,
        placement="v" if shape.name in V_SHAPED else "loop",
        orders=tuple(ORDER_OF[shape.name](rank, shape) for rank in range(shape.pp)),
    )


def repeats_after(shape: ScheduleShape) -> int:
    """Micro-batches after which a long order of a settled shape repeats; 0 when it never does."""
    if shape.name in NEVER_REPEATS:
        return 0
    in_rounds = shape.name in IN_ROUNDS and shape.vpp > 1
    return (shape.num_microbatches_per_round or 0) if in_rounds else 1


def shape_of_layout(layout: Layout, *, num_microbatches: int, rounds: Literal["even", "of pp"]) -> ScheduleShape:
    """The shape of a layout's pipeline.

    Args:
        layout: with its schedule, ranks and chunks.
        num_microbatches: per data-parallel rank and step.
        rounds: how interleaved schedules divide them: evenly as torch, or into rounds of p as Megatron.
    """
    return ScheduleShape(
        name=layout.schedule if layout.pp > 1 else "1f1b",
        pp=layout.pp,
        vpp=layout.vpp if layout.pp > 1 else 1,
        num_microbatches=num_microbatches,
        num_microbatches_per_round=layout.pp if rounds == "of pp" else None,
    )


def settled(asked: ScheduleShape) -> ScheduleShape:
    """The same with the chunks and rounds that will be taken.

    Raises:
        LayoutError: no order can be written for these numbers.
    """
    vpp = 2 if asked.name in V_SHAPED else 1 if asked.name in ONE_CHUNK else asked.vpp
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
    name, pp, m = shape.name, shape.pp, shape.num_microbatches
    if name == "dualpipev" and m < 2 * pp:
        raise LayoutError(
            f"dualpipev needs 2 pp = {2 * pp} micro-batches, but there are {m}",
            code="schedule-microbatches",
            fix=f"use {2 * pp} micro-batches or more",
        )
    if name == "dualpipe" and (pp % 2 or m % 2 or m < 2 * pp):
        raise LayoutError(
            f"dualpipe runs micro-batches from both ends: it needs an even pp and an even number of at least 2 pp of "
            f"them, but pp={pp} and there are {m}",
            code="schedule-microbatches",
            fix=f"use {2 * pp if m < 2 * pp else m + m % 2} micro-batches on {pp + pp % 2} ranks",
        )
    per_round = shape.num_microbatches_per_round or m
    rest = m % per_round
    if name in IN_ROUNDS and shape.vpp > 1 and 0 < rest < pp and per_round < m:
        raise LayoutError(
            f"rounds of {per_round} leave {rest} of {m} micro-batches, fewer than pp={pp} ranks, which neither torch "
            "nor Megatron runs",
            code="schedule-microbatches",
            fix=f"use {m - rest} micro-batches",
        )

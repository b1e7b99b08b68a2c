"""Records of schedules: one for every name, and what they say is what their orders do."""

from typing import get_args

import pytest

from shardwise.schedules.make import make_schedule
from shardwise.schedules.shape import ScheduleShape
from shardwise.schedules.table import SCHEDULE_KINDS, SCHEDULES, Schedule, ScheduleName

PP = 4
RECORDS = pytest.mark.parametrize("name", SCHEDULE_KINDS)


def order_of(name, rank):
    return make_schedule(ScheduleShape(name=name, pp=PP, vpp=3, num_microbatches=4 * PP)).orders[rank]


def test_every_name_has_a_record_and_those_of_plans_are_in_the_same_order():
    plain, others = get_args(ScheduleName)
    assert get_args(Schedule) == get_args(plain) == SCHEDULES
    assert set(SCHEDULE_KINDS) == {*SCHEDULES, *get_args(others)}


@RECORDS
def test_chunks_and_their_places_are_those_of_the_order(name):
    kind = SCHEDULE_KINDS[name]
    chunks = [{action.chunk for action in order_of(name, rank)} for rank in range(PP)]
    assert {len(held) for held in chunks} == {kind.num_chunks or 3}
    assert kind.is_v_shaped == (len(chunks[0]) > 1 and {0, 2 * PP - 1} <= chunks[0])


@RECORDS
def test_halves_of_backward_are_passes_of_the_order(name):
    kinds = {action.kind for rank in range(PP) for action in order_of(name, rank)}
    assert SCHEDULE_KINDS[name].splits_backward == ("input_backward" in kinds)


@RECORDS
def test_blocks_of_a_forward_and_a_backward_are_in_the_order(name):
    joined = any(action.joins_next for rank in range(PP) for action in order_of(name, rank))
    assert SCHEDULE_KINDS[name].overlaps_passes == joined


@RECORDS
def test_forwards_come_first_or_meet_backwards(name):
    is_forward = [action.kind == "forward" for action in order_of(name, 0)]
    num_forwards = sum(is_forward)
    assert SCHEDULE_KINDS[name].runs_forwards_first == all(is_forward[:num_forwards])

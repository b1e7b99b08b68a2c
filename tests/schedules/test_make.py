"""Shapes of schedules: what is taken when something is left open, and how a layout names one."""

import pytest

from shardwise.layout import Layout
from shardwise.schedules.make import make_schedule, repeats_after, settled
from shardwise.schedules.shape import ScheduleShape
from shardwise.step.layer_placement import chunk_owner, num_chunks


@pytest.mark.parametrize(
    ("name", "asked_vpp", "taken_vpp"),
    [("1f1b", 3, 1), ("gpipe", 2, 1), ("zb-h2", 2, 1), ("zbv", 1, 2), ("dualpipev", 1, 2), ("interleaved", 3, 3)],
)
def test_schedules_take_the_chunks_they_can_run(name, asked_vpp, taken_vpp):
    assert settled(ScheduleShape(name=name, pp=2, num_microbatches=8, vpp=asked_vpp)).vpp == taken_vpp


def test_ten_micro_batches_on_four_ranks_are_two_rounds_of_five_in_torch():
    assert settled(ScheduleShape(name="interleaved", pp=4, num_microbatches=10, vpp=2)).num_microbatches_per_round == 5


def test_an_order_repeats_after_a_round_or_a_micro_batch_or_never():
    shapes = [
        settled(ScheduleShape(name=name, pp=4, num_microbatches=12, vpp=2)) for name in ("interleaved", "zbv", "gpipe")
    ]
    assert [repeats_after(shape) for shape in shapes] == [4, 1, 0]


@pytest.mark.parametrize(
    "layout",
    [
        Layout(pp=4, schedule="1f1b"),
        Layout(pp=4, vpp=3, schedule="interleaved"),
        Layout(pp=4, schedule="zbv"),
        Layout(pp=4, vpp=2, schedule="dualpipev"),
    ],
)
def test_a_layouts_schedule_runs_the_chunks_where_the_inventory_places_them(layout):
    schedule = make_schedule(ScheduleShape(name=layout.schedule, pp=layout.pp, vpp=layout.vpp, num_microbatches=8))
    assert schedule.num_chunks == num_chunks(layout)
    owners = tuple(chunk_owner(chunk=chunk, layout=layout) for chunk in range(schedule.num_chunks))
    assert schedule.rank_of_chunk == owners

"""The ring as a lesson: its steps, its figures and the sizes it refuses."""

import pytest

from shardwise.course.lessons import LessonRequest
from shardwise.course.lessons.ring import make_lesson
from shardwise.errors import SimulationError


def test_four_ranks_need_six_steps_and_send_one_and_a_half_times_the_tensor():
    lesson = make_lesson(LessonRequest(num_ranks=4))
    assert len(lesson.steps) == 6
    reduce = lesson.tables[0].rows[2]
    assert reduce[:4] == ("ring all-reduce", 6, 1.5, 21e9)


def test_after_half_of_the_steps_each_rank_has_one_sum():
    table = make_lesson(LessonRequest(num_ranks=4)).steps[2].table
    assert [row.count("sum") for row in table.rows] == [1, 1, 1, 1]
    assert [row[1 + rank] for rank, row in enumerate(table.rows)] == ["sum"] * 4


def test_the_seeds_number_of_steps_is_wrong_and_its_volume_right():
    steps, volume = make_lesson(LessonRequest()).claims
    assert (steps.said, steps.computed, steps.verdict) == (7, 14, "wrong")
    assert (volume.said, volume.computed, volume.verdict) == (24.5e9, 24.5e9, "right")


@pytest.mark.parametrize(("asked", "nearest"), [(1, 2), (0, 2), (100, 64)])
def test_an_impossible_number_of_ranks_names_the_nearest(asked, nearest):
    with pytest.raises(SimulationError) as refused:
        make_lesson(LessonRequest(num_ranks=asked))
    assert refused.value.fix == f"use --num-ranks {nearest}"


@pytest.mark.parametrize("field", ["payload_bytes", "bandwidth_bytes_per_s", "latency_s"])
def test_links_and_payloads_are_positive(field):
    with pytest.raises(SimulationError) as refused:
        make_lesson(LessonRequest(**{field: -1.0}))
    assert refused.value.code == "simulate-size"

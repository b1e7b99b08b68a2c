"""What holds for every simulation that has a name."""

from dataclasses import fields, replace

import pytest

from shardwise.course.lesson import GanttPicture, MessagePicture
from shardwise.course.lessons import LESSONS, LessonRequest, find_lesson, make_lessons
from shardwise.errors import SimulationError

NAMES = [entry.name for entry in LESSONS]


@pytest.fixture(scope="module", params=NAMES)
def lesson(request):
    return make_lessons(request.param, LessonRequest())[0]


def test_every_check_holds(lesson):
    assert [check.what for check in lesson.checks if not check.holds] == []


def test_it_carries_the_name_it_was_asked_for_by(lesson):
    assert lesson.name in NAMES
    assert "simulation" in lesson.what.lower()


def test_rows_are_as_wide_as_their_columns(lesson):
    tables = [*lesson.tables, *(step.table for step in lesson.steps if step.table is not None)]
    assert all(len(row) == len(table.columns) for table in tables for row in table.rows)


def test_claims_that_are_not_right_say_why(lesson):
    assert [claim.says for claim in lesson.claims if claim.verdict != "right" and not claim.note] == []


def test_right_figures_are_the_computed_ones(lesson):
    for claim in lesson.claims:
        if claim.verdict == "right" and isinstance(claim.said, int | float):
            assert claim.said == pytest.approx(claim.computed, rel=0.05), claim.says


def test_pictures_show_only_ranks_and_times_that_exist(lesson):
    for picture in lesson.pictures:
        if isinstance(picture, MessagePicture):
            ranks = range(len(picture.rank_names))
            assert all(m.sender in ranks and m.receiver in ranks for one in picture.rounds for m in one.messages)
        if isinstance(picture, GanttPicture):
            bars = [bar for lane in picture.lanes for bar in lane.bars]
            assert bars
            assert all(0 <= bar.start <= bar.end for bar in bars)


def test_a_failing_check_says_so(lesson):
    if lesson.checks:
        assert not replace(lesson.checks[0], difference=lesson.checks[0].limit + 1).holds


@pytest.mark.parametrize("name", NAMES)
def test_options_are_fields_of_the_request(name):
    options = find_lesson(name).load().OPTIONS
    assert set(options) <= {field.name for field in fields(LessonRequest)}


def test_an_unknown_name_is_answered_with_the_nearest():
    with pytest.raises(SimulationError) as refused:
        make_lessons("rign", LessonRequest())
    assert refused.value.code == "simulate-name"
    assert refused.value.fix == "shardwise simulate ring"


def test_an_option_that_would_be_ignored_is_refused():
    with pytest.raises(SimulationError) as refused:
        make_lessons("ring", LessonRequest(zero_stage=2))
    assert refused.value.code == "simulate-option"
    assert "--num-ranks" in refused.value.message


@pytest.mark.parametrize("name", ["precision", "ring", "tree", "data"])
def test_a_seed_below_zero_is_refused_with_the_nearest(name):
    with pytest.raises(SimulationError) as refused:
        make_lessons(name, LessonRequest(seed=-1))
    assert refused.value.fix == "use --seed 0"

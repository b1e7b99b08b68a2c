"""Schedules as a lesson: what is drawn is what the closed forms and the orders say."""

import pytest

from shardwise.course.lessons import LessonRequest
from shardwise.course.lessons.pipeline import make_lesson
from shardwise.errors import SimulationError


@pytest.mark.parametrize(
    ("pp", "vpp", "m"),
    [(1, 1, 1), (1, 2, 5), (2, 1, 2), (3, 2, 6), (4, 2, 4), (4, 3, 12), (5, 2, 7), (8, 2, 4), (7, 1, 30), (16, 2, 64)],
)
def test_drawn_bubbles_and_closed_forms_agree_for_many_sizes(pp, vpp, m):
    lesson = make_lesson(LessonRequest(pp=pp, vpp=vpp, num_microbatches=m))
    assert [check.what for check in lesson.checks if not check.holds] == []


def test_bubbles_and_passes_fill_every_lane():
    for picture in make_lesson(LessonRequest()).pictures:
        end = max(bar.end for lane in picture.lanes for bar in lane.bars)
        for lane in picture.lanes:
            assert sum(bar.end - bar.start for bar in lane.bars) == pytest.approx(end)


def test_the_seeds_pipeline_program_is_reproduced():
    rows = make_lesson(LessonRequest()).tables[1].rows
    assert [(row[0], row[1], f"{row[2]:.1%}") for row in rows] == [
        (1, 64, "75.0%"),
        (4, 112, "42.9%"),
        (8, 176, "27.3%"),
        (16, 304, "15.8%"),
        (32, 560, "8.6%"),
    ]


def test_a_schedule_without_order_is_left_out_with_its_reason():
    lesson = make_lesson(LessonRequest(pp=8, num_microbatches=8))
    assert any(note.startswith("dualpipev is left out") for note in lesson.notes)
    assert "dualpipev" not in {row[0] for row in lesson.tables[0].rows}


def test_walking_a_schedule_that_has_no_order_is_refused():
    with pytest.raises(SimulationError) as refused:
        make_lesson(LessonRequest(pp=8, num_microbatches=8, schedule="dualpipev"))
    assert "16 micro-batches" in refused.value.message
    assert "--num-microbatches" in refused.value.fix


def test_the_walk_starts_with_the_first_forward_and_ends_with_the_last_backward():
    steps = make_lesson(LessonRequest(pp=2, num_microbatches=2)).steps
    assert steps[0].text == "rank 0 starts forward 0"
    assert steps[-1].text == "rank 0 starts backward 1"
    assert [row[2] for row in steps[0].table.rows] == [1, 0]


def test_a_step_of_many_micro_batches_is_counted_without_steps():
    lesson = make_lesson(LessonRequest(pp=16, num_microbatches=256))
    row = next(row for row in lesson.tables[0].rows if row[0] == "1f1b")
    assert row[2] == (256 + 15) * 6
    assert row[5] == 16
    assert lesson.steps == ()
    assert len(lesson.pictures) == 1

"""Mixed precision as a lesson: the seeds' figures beside the master copy they leave out."""

from shardwise.course.lessons import LessonRequest
from shardwise.course.lessons.precision import make_lesson

LESSON = make_lesson(LessonRequest())


def test_the_printed_comparison_of_the_seeds_and_its_missing_master_copy():
    rows = LESSON.tables[5].rows
    assert [(row[0], row[1] / 1e9, row[2] / 1e9, row[3]) for row in rows] == [
        ("7B", 112, 84, 0.25),
        ("13B", 208, 156, 0.25),
        ("70B", 1120, 840, 0.25),
        ("405B", 6480, 4860, 0.25),
    ]
    assert {row[5] for row in rows} == {0.0}


def test_84_gb_with_a_master_copy_is_wrong():
    claim = next(claim for claim in LESSON.claims if "master" in claim.says)
    assert (claim.said, claim.computed, claim.verdict) == (84e9, 112e9, "wrong")


def test_only_narrow_exponents_lose_gradients():
    vanished = {(row[0], row[1]): row[2] for row in LESSON.tables[1].rows}
    assert vanished["bf16", 1.0] == 0
    assert vanished["fp16", 1.0] > 0.3
    assert vanished["fp16", 2.0**16] < 0.001
    assert vanished["fp8-e4m3", 1.0] > vanished["fp8-e5m2", 1.0] > vanished["fp16", 1.0]


def test_the_walk_shows_the_scale_backing_off_before_it_trains():
    assert "halved" in LESSON.steps[0].text
    assert "updated" in LESSON.steps[-1].text

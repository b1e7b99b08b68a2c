"""Checkpointing as a lesson: the seeds' exercise, and a real plan predicted under each choice."""

import pytest

from shardwise.course.lessons import LessonRequest
from shardwise.course.lessons.checkpoint import make_lesson
from shardwise.errors import ShardwiseError

LESSON = make_lesson(LessonRequest())


def test_full_recomputation_saves_nine_tenths_for_a_third_of_the_compute():
    full = next(row for row in LESSON.tables[0].rows if row[0] == "1")
    assert full[2] == pytest.approx(0.09, abs=0.005)
    assert full[4] == pytest.approx(1 / 3)


def test_a_layer_keeps_what_korthikanti_counts():
    """34 sbh = 285 MB, with scores 956 MB, its input 16.8 MB; the lesson counts 67."""
    sizes = [row[1] / 1e6 for row in LESSON.tables[1].rows]
    assert sizes == pytest.approx([67.1, 956.3, 285.2, 16.8], abs=0.05)


def test_recomputed_scores_cost_a_fortieth_of_the_step():
    """4 s^2 h more on 72 s h^2 + 12 s^2 h with s = 2,048 and h = 4,096; full recomputation is of the same whole."""
    assert [row[4] for row in LESSON.tables[1].rows] == pytest.approx([0, 0, 1 / 39, 1 / 3])


def test_more_recomputation_needs_less_memory_and_more_time_in_a_real_plan():
    rows = {row[0]: row for row in LESSON.tables[2].rows}
    order = ["none", "full, 8 layers", "full, 16 layers", "full"]
    needed, steps = [rows[name][2] for name in order], [rows[name][4] for name in order]
    assert needed == sorted(needed, reverse=True)
    assert steps == sorted(steps)


def test_states_are_not_saved_by_checkpointing():
    claim = next(claim for claim in LESSON.claims if "under 80 GB" in claim.says)
    assert claim.verdict == "wrong"
    assert claim.computed == "105 GB of states alone"


def test_an_unknown_model_is_refused_by_the_catalogue():
    with pytest.raises(ShardwiseError):
        make_lesson(LessonRequest(model="no-such-model"))

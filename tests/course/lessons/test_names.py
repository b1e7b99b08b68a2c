"""Simulations answer to the names of degrees and of ZeRO's stages."""

import pytest

from shardwise.course.lessons import LessonRequest, find_lesson, make_lessons
from shardwise.errors import SimulationError


@pytest.mark.parametrize(
    ("said", "name"),
    [("dp", "data"), ("TP", "tensor"), ("pp", "pipeline"), ("ep", "expert"), ("cp", "context"), ("zero1", "zero")],
)
def test_a_degree_names_its_simulation(said, name):
    assert find_lesson(said).name == name


def test_a_stage_in_the_name_is_the_stage_that_is_simulated():
    (named,) = make_lessons("zero1", LessonRequest(num_hidden_layers=1))
    assert named == make_lessons("zero", LessonRequest(zero_stage=1, num_hidden_layers=1))[0]
    assert named != make_lessons("zero", LessonRequest(zero_stage=2, num_hidden_layers=1))[0]


def test_two_stages_contradict_each_other():
    with pytest.raises(SimulationError, match="zero2 is stage 2, and --zero-stage says 3"):
        make_lessons("zero2", LessonRequest(zero_stage=3))

"""The front as a picture: what it shows, and where its points lie in the terminal."""

from dataclasses import replace

import pytest

from render.sample_answers import BEST, FOUND, RUNNER_UP
from shardwise.render.front_picture import FrontAxis, FrontPicture, FrontPoint, search_front
from shardwise.render.svg_front import lower_left
from shardwise.render.text_front import PLOT_HEIGHT, front_lines
from shardwise.units import format_gib, format_seconds


def test_ranked_plans_are_numbers_and_the_rest_of_the_front_is_a_ring():
    other = replace(BEST, rank=2, plan=replace(BEST.plan, layout=replace(RUNNER_UP.plan.layout, tp=2, dp_shard=4)))
    picture = search_front(replace(FOUND, pareto=(BEST, other)))
    assert [(point.mark, point.is_on_front) for point in picture.points] == [("1", True), ("2", False), ("o", True)]


def test_ten_and_more_share_a_mark():
    tenth = replace(RUNNER_UP, rank=10)
    assert [point.mark for point in search_front(replace(FOUND, plans=(BEST, tenth))).points] == ["1", "+"]


def test_one_plan_alone_is_no_picture():
    assert search_front(replace(FOUND, plans=(BEST,), pareto=(BEST,))) is None


@pytest.mark.parametrize(
    ("low", "high", "value", "share"),
    [(2.0, 6.0, 3.0, 0.25), (1.0, 100.0, 10.0, 0.5), (5.0, 5.0, 5.0, 0.5), (0.0, 80.0, 20.0, 0.25)],
)
def test_wide_axes_are_logarithmic_and_empty_ones_put_all_in_the_middle(low, high, value, share):
    assert FrontAxis(name="step", low=low, high=high, write=str).share(value) == pytest.approx(share)


def test_the_fastest_lies_left_and_the_smallest_lies_low():
    picture = FrontPicture(
        title="Front",
        x=FrontAxis(name="step", low=2.0, high=4.0, write=format_seconds),
        y=FrontAxis(name="needed", low=2.0**30, high=2.0**32, write=format_gib),
        points=(
            FrontPoint(x=2.0, y=2.0**32, mark="1", label="fast", is_on_front=True),
            FrontPoint(x=4.0, y=2.0**30, mark="2", label="small", is_on_front=True),
        ),
        note="numbers are ranks",
    )
    lines = [line.plain for line in front_lines(picture)]
    assert lines[0] == "Front"
    assert lines[1] == "    4.00 GiB |1"
    assert lines[PLOT_HEIGHT] == "    1.00 GiB |" + " " * 55 + "2"
    assert lines[PLOT_HEIGHT + 1] == " " * 13 + "+" + "-" * 56
    assert lines[PLOT_HEIGHT + 2].split() == ["2.00", "s", "4.00", "s"]
    assert lines[-1] == "(across: step; up: needed; numbers are ranks)"


def test_plans_of_the_front_far_slower_than_the_ranked_are_told_and_not_drawn():
    time = replace(BEST.prediction.time, step_s=1.6 * RUNNER_UP.prediction.time.step_s)
    layout = replace(RUNNER_UP.plan.layout, tp=2, dp_shard=4)
    far = replace(BEST, rank=2, plan=replace(BEST.plan, layout=layout), prediction=replace(BEST.prediction, time=time))
    picture = search_front(replace(FOUND, pareto=(BEST, far)))
    assert [point.mark for point in picture.points] == ["1", "2"]
    assert "; further right the front reaches " in picture.note


def test_the_line_joins_what_no_other_beats_in_both_figures():
    points = [
        FrontPoint(x=x, y=y, mark="A", label="", is_on_front=True) for x, y in ((1.0, 5.0), (2.0, 9.0), (3.0, 4.0))
    ]
    assert [(point.x, point.y) for point in lower_left(points)] == [(1.0, 5.0), (3.0, 4.0)]

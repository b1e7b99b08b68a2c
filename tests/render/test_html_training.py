"""The page of a finished run: what it shows, and what it leaves out where nothing was measured."""

from pathlib import Path

import pytest

from shapes import plan
from shardwise.families import read_model
from shardwise.layout import Layout
from shardwise.predict import predict
from shardwise.render.html_training import FinishedRun, training_html
from shardwise.render.svg_steps import Curve, Guide, curves_svg, thinned, ticks

ASKED = plan(read_model("llama-3.1-8b"), engine="native", layout=Layout(dp_shard=8), seq_len=4096)
MEASURED = {
    "time": {"step_s": 0.5},
    "throughput": {"tokens_per_s_per_gpu": 1158.4},
    "memory": {
        "peak_allocated_bytes": 3 << 30,
        "components_bytes": {"parameters": 1 << 30},
        "phases_bytes": {"backward": 3 << 30, "forward": 2 << 30},
    },
    "loss": {"first": 7.6613, "last": 6.2822},
    "validation": {"num_validations": 2, "best_loss": 6.5, "best_step": 4, "first_loss": 7.0, "last_loss": 6.5},
}


def page(measured=MEASURED, recipe=None):
    steps = [
        {
            "step": step,
            "loss": 8.0 - step / 4,
            "tokens_per_s_per_gpu": 1100.0,
            "validation_loss": 6.5 if step == 4 else None,
        }
        for step in (1, 2, 3, 4)
    ]
    run = FinishedRun(
        plan=ASKED,
        prediction=predict(ASKED),
        measured=measured,
        used=(),
        steps=steps,
        recipe=recipe or {},
        folder=Path("runs/a"),
    )
    return training_html(run)


def test_the_page_begins_with_what_a_reader_looks_for():
    found = page()
    assert "<div>loss<b>6.2822</b><span>from 7.6613 in the first step</span></div>" in found
    assert "<div>validation loss<b>6.5000</b><span>the best of 2, after step 4</span></div>" in found
    assert "<div>tokens/s per GPU<b>1,158</b>" in found
    assert "<div>peak of allocated memory<b>3.00 GiB</b>" in found


def test_phases_stand_in_the_order_of_a_step_with_predicted_beside_measured():
    found = page()
    assert found.index("forward, predicted: ") < found.index("forward, measured: 2.00 GiB")
    assert found.index("forward, measured: 2.00 GiB") < found.index("backward, measured: 3.00 GiB")


def test_what_was_not_measured_is_said():
    found = page({"loss": {}, "time": {}})
    assert "<b>not measured</b>" in found
    assert "No step of this run was looked into for its memory." in found


def test_the_options_of_a_recipe_are_shown_and_escaped():
    given = {
        "schema": "shardwise.recipe/1",
        "plan": {"schema": "shardwise.plan/1", "model": {"a": 1}, "recipe": {"compile": False}},
        "data": {"data": ["<a>", "b"]},
    }
    found = page(recipe=given)
    assert "<h3>data</h3>" in found
    assert "<td>data</td><td>&lt;a&gt;, b</td>" in found
    assert "<td>recipe.compile</td><td>no</td>" in found
    assert "model.a" not in found


def test_a_long_run_is_drawn_as_means_and_its_validations_one_by_one():
    points = tuple((step, float(step)) for step in range(1, 1001))
    means = thinned(Curve(name="loss", colour="#000", points=points)).points
    assert len(means) == 334
    assert means[0] == (2, 2.0)
    assert len(thinned(Curve(name="loss", colour="#000", points=points, has_marks=True)).points) == 1000


def test_a_curve_is_drawn_under_its_guide_and_one_without_points_not_at_all():
    curve = Curve(name="measured", colour="#009e73", points=((1, 10.0), (3, 30.0)))
    drawn = curves_svg(
        [curve], title="Speed", amount=str, guide=Guide(name="predicted", level=40.0), starts_at_zero=True
    )
    assert "points='78.0,194.5 558.0,95.4'" in drawn
    assert ">predicted</text>" in drawn
    assert curves_svg([Curve(name="none", colour="#000", points=())], title="None", amount=str) == ""


@pytest.mark.parametrize(
    ("low", "high", "found"), [(0.0, 4.2, [0, 1, 2, 3, 4]), (3.0, 8.0, [3, 4, 5, 6, 7, 8]), (0.0, 3e-4, [0, 1, 2, 3])]
)
def test_ticks_are_round(low, high, found):
    unit = 1e-4 if high < 1 else 1
    assert [round(tick / unit, 6) for tick in ticks(low, high)][:: 2 if len(ticks(low, high)) == 7 else 1] == found

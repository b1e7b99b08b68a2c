"""The step-time accuracy report as text, JSON and a page with its own scatter plot."""

import json
import re
from xml.etree import ElementTree

import pytest

from shardwise.render.html_validation import memory_validation_html, time_validation_html
from shardwise.render.json_answers import validation_object
from shardwise.render.json_text import json_text
from shardwise.render.svg_scatter import PLOT_SIZE, ScatterPoint, family_colours, scatter_svg
from shardwise.render.text_time_validation import time_validation_text
from shardwise.validate.accuracy import memory_accuracy
from shardwise.validate.shipped_runs import measured_runs, timed_runs
from shardwise.validate.time_accuracy import time_accuracy

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def report():
    return time_accuracy(runs=[run for run in timed_runs().runs if run.family in ("KORTH", "MLM21T2")])


def circles(svg):
    found = ElementTree.fromstring(svg).iter(f"{SVG}circle")
    return [circle for circle in found if circle.find(f"{SVG}title") is not None]


def point(measured, predicted, **fields):
    return ScatterPoint(family="A", measured_ratio=measured, predicted_ratio=predicted, label="x", **fields)


def test_a_point_on_the_diagonal_is_as_far_right_as_up():
    drawn = circles(scatter_svg([point(1.0, 1.0), point(10.0, 10.0), point(100.0, 1.0)], title="t", unit="s"))
    x = [float(circle.get("cx")) for circle in drawn]
    y = [float(circle.get("cy")) for circle in drawn]
    assert x[1] - x[0] == pytest.approx(PLOT_SIZE / 2, abs=0.1)
    assert y[0] - y[1] == pytest.approx(PLOT_SIZE / 2, abs=0.1)
    assert y[2] == y[0]


def test_runs_that_are_not_counted_are_hollow():
    drawn = circles(scatter_svg([point(1.0, 2.0), point(2.0, 3.0, is_hollow=True)], title="t", unit="s"))
    assert [circle.get("fill") == "none" for circle in drawn] == [False, True]


def test_every_family_has_its_own_colour():
    names = [f"F{index}" for index in range(30)]
    assert len(set(family_colours(names).values())) == 30


def test_an_empty_report_is_still_a_picture():
    ElementTree.fromstring(scatter_svg([], title="nothing <b>", unit="s"))


def test_the_page_has_a_point_for_every_run_and_loads_nothing(report):
    page = time_validation_html(report)
    picture = re.search(r"<svg.*</svg>", page, flags=re.DOTALL).group()
    assert len(circles(picture)) == len(report.rows)
    assert re.findall(r"<script|<link|@import|url\(|src=", page) == []
    assert re.findall(r"https?://(?!www\.w3\.org/2000/svg)", page) == []


def test_memory_has_the_same_page():
    runs = [run for run in measured_runs().runs if run.family == "ZBPP"]
    page = memory_validation_html(memory_accuracy(runs=runs))
    assert "ZBPP-001" in page
    assert "Peak memory, predicted against measured" in page


def test_the_text_says_what_was_fitted_and_fits_a_pipe(report):
    text = time_validation_text(report, has_rows=True, has_unused=True)
    assert "Fitted on: " in text
    assert "MLM21T2*" in text
    assert max(len(line) for line in text.splitlines()) <= 80


def test_the_object_holds_every_row_with_its_parts(report):
    written = json.loads(json_text(validation_object(report)))
    assert written["schema"] == "shardwise.time_validation/1"
    row = next(row for row in written["rows"] if row["id"] == "KORTH-001")
    assert row["measured_s"] == 1.42
    assert sum(row["components_s"].values()) == pytest.approx(row["predicted_s"])
    assert {"families", "reported", "fitted", "with_gaps", "fitted_families", "unused"} <= set(written)

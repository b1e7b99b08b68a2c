"""The memory picture as SVG and HTML: well formed, in proportion, self-contained."""

import re
from xml.etree import ElementTree

import pytest

from render.sample_records import MEMORY, PLAN, PREDICTION, too_big
from shardwise.render.html_prediction import prediction_html
from shardwise.render.svg_memory import BAR_WIDTH, LABEL_WIDTH, memory_svg
from shardwise.units import format_gib

SVG = "{http://www.w3.org/2000/svg}"


def bars(svg: str) -> list[ElementTree.Element]:
    """The rectangles that stand for memory: those with a tooltip."""
    return [rect for rect in ElementTree.fromstring(svg).iter(f"{SVG}rect") if rect.find(f"{SVG}title") is not None]


def test_every_component_of_every_stage_has_a_bar_in_proportion():
    drawn = bars(memory_svg(MEMORY, title="sample"))
    assert len(drawn) == 18
    widths = {rect.find(f"{SVG}title").text: float(rect.get("width")) for rect in drawn[:9]}
    assert widths["logits: 11.00 GiB"] == pytest.approx(BAR_WIDTH * 11 / 79, abs=0.1)


def test_the_capacity_line_stands_inside_when_a_stage_is_too_big():
    line = ElementTree.fromstring(memory_svg(too_big().memory, title="sample")).find(f".//{SVG}line")
    assert float(line.get("x1")) == pytest.approx(LABEL_WIDTH + BAR_WIDTH * 61 / 69, abs=0.1)


def test_a_bar_says_what_is_needed_as_the_text_does_and_what_is_held_beside_it():
    """Only what is held was written, 22.33 GiB beside an answer of "18.19 GiB needed"."""
    worst = MEMORY.worst
    drawn = memory_svg(MEMORY, title="sample")
    assert f">needs {format_gib(worst.needed_bytes)}<" in drawn
    assert f">holds {format_gib(worst.device_used_bytes)}<" in drawn


def test_names_are_escaped():
    ElementTree.fromstring(memory_svg(MEMORY, title="<b> & 'quotes'"))


def test_the_page_loads_nothing_from_anywhere():
    page = prediction_html(plan=PLAN, prediction=PREDICTION)
    assert re.findall(r"<script|<link|@import|url\(|src=", page) == []
    assert re.findall(r"https?://(?!www\.w3\.org/2000/svg)", page) == []

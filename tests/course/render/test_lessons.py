"""A lesson made by hand, as text, JSON, SVG and page."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import get_args
from xml.etree import ElementTree

import pytest

from golden_files import assert_golden
from shardwise.claims import Claim, Verdict
from shardwise.course.lesson import (
    Check,
    Column,
    Curve,
    CurvePicture,
    GanttBar,
    GanttLane,
    GanttPicture,
    Lesson,
    LessonStep,
    LessonTable,
    Message,
    MessagePicture,
    MessageRound,
    Setting,
)
from shardwise.course.render.html_lesson import lessons_html
from shardwise.course.render.json_lesson import lessons_object
from shardwise.course.render.lesson_cells import cell_text
from shardwise.course.render.svg_gantt import merged
from shardwise.course.render.svg_lesson import lessons_svg
from shardwise.course.render.svg_placement import placement_svg
from shardwise.course.render.text_lesson import lesson_heading_text, lessons_text, step_texts
from shardwise.errors import SimulationError
from shardwise.layout import Layout

GOLDEN = Path(__file__).parent / "golden"
SENDS = (
    Message(sender=0, receiver=1, num_bytes=1024, what="chunk 1", adds=True),
    Message(sender=1, receiver=0, num_bytes=1024, what="chunk 0"),
)
TABLE = LessonTable(
    title="What each rank holds",
    head="rank | bytes: bytes | share: fraction",
    rows=(("0", 1536, 0.1875), ("1", None, 1.5)),
    note="after the step",
)
GANTT = GanttPicture(
    title="Two ranks",
    unit="time_units",
    lanes=(
        GanttLane(
            name="rank 0",
            bars=(
                GanttBar(kind="forward", start=0, end=2, label="0"),
                GanttBar(kind="bubble", start=2, end=3),
                GanttBar(kind="backward", start=3, end=5, label="0"),
            ),
            held=((0, 1.0), (5, 0.0)),
        ),
        GanttLane(name="rank 1", bars=(GanttBar(kind="odd <kind>", start=1, end=5),)),
    ),
    numbered="micro-batch",
    held_name="micro-batches",
)
CURVES = CurvePicture(
    title="Time by size",
    x=Column(name="size", unit="decimal_bytes"),
    y=Column(name="time", unit="s"),
    curves=(Curve(name="ring", points=((1e3, 1e-3), (1e6, 1e-2))), Curve(name="tree", points=((1e3, 1e-4),))),
    is_x_log=True,
    is_y_log=True,
)
MESSAGES = MessagePicture(
    title="Who sends what", rank_names=("0", "1"), rounds=(MessageRound(title="step 1", messages=SENDS),)
)
LESSON = Lesson(
    name="sample",
    title="A <sample> & its parts",
    what="A simulation made by hand.",
    settings=(Setting(name="num-ranks", value=2, unit="count", meaning="ranks"),),
    tables=(TABLE,),
    steps=(LessonStep(title="first", text="both send", messages=SENDS, table=TABLE), LessonStep(title="last")),
    checks=(
        Check(what="sum", difference=0.0, limit=0.0),
        Check(what="rounding", difference=0.5, limit=1e-7),
    ),
    claims=(
        Claim(
            says="7 steps", source="a page", said=7, computed=14, unit="count", verdict="wrong", note="twice as many"
        ),
    ),
    pictures=(MESSAGES, GANTT, CURVES),
    notes=("One remark.",),
)


def test_the_text_is_approved():
    assert_golden(GOLDEN / "lesson.txt", lessons_text([LESSON]))


def test_the_walk_is_approved():
    texts = [lesson_heading_text(LESSON), *step_texts(LESSON)]
    assert_golden(GOLDEN / "lesson_steps.txt", "".join(texts))


def test_a_lesson_without_steps_says_so():
    assert list(step_texts(replace(LESSON, steps=()))) == ["This simulation has no steps to walk through.\n"]


def test_json_has_raw_numbers_and_no_check_that_fails_unnoticed():
    answer = json.loads(json.dumps(lessons_object([LESSON]), allow_nan=False))
    assert answer["holds"] is False
    lesson = answer["lessons"][0]
    assert lesson["tables"][0]["rows"] == [["0", 1536, 0.1875], ["1", None, 1.5]]
    assert [picture["kind"] for picture in lesson["pictures"]] == ["messages", "gantt", "curves"]
    assert lesson["steps"][0]["messages"][0]["adds"] is True


def test_the_picture_is_well_formed_and_draws_every_bar_and_message():
    root = ElementTree.fromstring(lessons_svg([LESSON]))
    titles = [node.text for node in root.iter("{http://www.w3.org/2000/svg}title")]
    assert "forward 0, 0 units to 2 units" in titles
    assert "bubble, 2 units to 3 units" in titles
    assert "odd <kind>, 1 units to 5 units" in titles
    assert "0 to 1: chunk 1, 1.00 KiB, added" in titles


def test_numbers_in_bars_have_a_legend_and_a_long_note_has_several_lines():
    """A note of one line ran out of the picture at "in the next stag"."""
    texts = [one.text for one in ElementTree.fromstring(lessons_svg([LESSON])).iter("{http://www.w3.org/2000/svg}text")]
    assert "number: micro-batch" in texts
    placed = ElementTree.fromstring(placement_svg(Layout(tp=2, pp=2, dp_shard=2)))
    assert all(len(one.text) <= 130 for one in placed.iter("{http://www.w3.org/2000/svg}text"))


def test_a_lesson_without_pictures_is_not_drawn():
    with pytest.raises(SimulationError) as refused:
        lessons_svg([replace(LESSON, pictures=())])
    assert refused.value.code == "simulate-option"


def test_the_page_holds_everything_escapes_it_and_loads_nothing():
    page = lessons_html([LESSON])
    assert "A &lt;sample&gt; &amp; its parts" in page
    assert page.count('class="step"') == 2
    assert 'class="verdict wrong"' in page
    assert "FAILS" in page
    assert "prefers-color-scheme: dark" in page
    for verdict in get_args(Verdict):
        assert f".{verdict}" in page
        assert page.count(f"--{verdict}: #") == 2
    assert not re.search(r"<link|src=|@import|https?://(?!www\.w3\.org/2000/svg)", page)


def test_several_lessons_share_a_page_with_links():
    page = lessons_html([LESSON, replace(LESSON, name="other")])
    assert '<a href="#sample">' in page
    assert '<section id="other">' in page


def test_thousands_of_narrow_bars_are_drawn_as_one_and_wide_ones_are_kept():
    narrow = [GanttBar(kind="forward", start=0.001 * i, end=0.001 * (i + 1)) for i in range(1000)]
    wide = GanttBar(kind="backward", start=1.0, end=2.0)
    found = list(merged([*narrow, wide], 100.0))
    assert [count for _, _, count in found] == [1000, 1]


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (1536, "bytes", "1.50 KiB"),
        (24.5e9, "decimal_bytes", "24.50 GB"),
        (0.0857, "fraction", "8.57%"),
        (3.0, "fraction", "300.0%"),
        (1.75, "ratio", "1.75x"),
        (8.75e9, "number", "8,750,000,000"),
        (5.28e-10, "number", "5.28e-10"),
        (-0.5, "s", "-500.0 ms"),
        (3.8e25, "flop", "38000000000000.00TFLOP"),
        (50e9, "bytes_per_s", "50.00 GB/s"),
        (None, "s", ""),
        ("text", "s", "text"),
    ],
)
def test_numbers_are_written_by_their_unit(value, unit, text):
    assert cell_text(value, unit) == text

"""Every number and picture of the story is what the page's own code computes today.

After a wanted change: ``UPDATE_GOLDEN=1 .venv/bin/pytest tests/story``, then read the diff.
"""

import os
import re

import pytest

from story.chapters import PICTURES, STORY, chapter_paths, loose_amounts, loose_numbers, run_chapter, update

pytestmark = pytest.mark.runs

ROUNDING = re.compile(r"\b\d(?:\.\d+)?e-1[3-9]\b")
"""A relative difference that is nothing but the order of a sum, which differs from one CPU to another."""
LINK = re.compile(r"\]\((?!https?:)(?P<target>[^)#]+)")


@pytest.mark.parametrize("path", chapter_paths(), ids=lambda path: path.stem)
def test_a_chapter_shows_what_its_code_computes(path):
    text = path.read_text(encoding="utf-8")
    chapter = run_chapter(text)
    if os.environ.get("UPDATE_GOLDEN"):
        update(path, chapter, keeps_text=shown(text) == shown(chapter.text))
        text = path.read_text(encoding="utf-8")
    assert shown(text) == shown(chapter.text)
    for name, svg in chapter.pictures:
        assert (PICTURES / f"{name}.svg").read_text(encoding="utf-8") == svg
        assert f"(pictures/{name}.svg)" in text
    assert loose_numbers(text) == []
    assert chapter.untrue == ()
    assert loose_amounts(text) == []


def shown(text):
    """What a page says whatever the CPU."""
    return ROUNDING.sub("rounding", text)


def test_the_contents_list_every_chapter_and_every_link_leads_somewhere():
    contents = (STORY / "README.md").read_text(encoding="utf-8")
    assert [path.name for path in chapter_paths() if f"({path.name})" not in contents] == []
    for page in (STORY / "README.md", *chapter_paths()):
        targets = [found["target"] for found in LINK.finditer(page.read_text(encoding="utf-8"))]
        assert [target for target in targets if not (STORY / target).exists()] == []


def test_an_output_that_is_out_of_date_is_found():
    page = "```python\nprint(6 * 7)\n```\n\n```text\n41\n```\n"
    assert run_chapter(page).text == page.replace("41", "42")


def test_rounding_is_compared_as_rounding_and_no_larger_difference_is():
    assert shown("difference 9e-16") == shown("difference 1e-15") == shown("difference 2.1e-14")
    assert shown("difference 9e-16") != shown("difference 1e-12")
    assert shown("difference 9e-16") != shown("difference 0")


def test_a_claim_that_does_not_hold_is_found():
    page = (
        "```python\nsent = (2, 3)\n```\n\nIt sends half as much again. <!-- holds: sent[1] / sent[0] == {ratio} -->\n"
    )
    assert run_chapter(page.format(ratio=1.5)).untrue == ()
    assert run_chapter(page.format(ratio=1.39)).untrue == ("sent[1] / sent[0] == 1.39",)
    assert run_chapter(page.format(ratio=1.5)).text == page.format(ratio=1.5)


def test_a_word_of_amount_that_nothing_ties_to_a_computation_is_found():
    page = (
        "It gathers twice.\n\n*Is it the best?*\n\n```python\nhalf = 1\n```\n\nIt is half. <!-- holds: half == 1 -->\n"
    )
    assert loose_amounts(page) == ["twice"]


def test_a_number_that_nobody_computed_is_found():
    page = "It needs 140 GB, or 280.\n\n```python\nprint(70 * 2)\n```\n\n```text\n140\n```\n"
    assert loose_numbers(page) == ["280"]

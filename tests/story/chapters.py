"""Runs a chapter of the story: its Python blocks in one namespace, their output beside what the page shows.

A chapter is Markdown. Every Python block is run in order; what it prints is the text block that follows it.
Two functions are given to the blocks: ``picture(name, svg)`` draws the file ``pictures/NAME.svg``, and ``show(table)``
prints a table of a lesson. Numbers stand in blocks and outputs; prose may only repeat them.
"""

import contextlib
import io
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from habits.source_tree import ROOT
from shardwise.course.lesson import LessonTable
from shardwise.course.render.text_lesson import table_parts
from shardwise.render.terminal import TextStyle, page_text

STORY = ROOT / "docs" / "story"
PICTURES = STORY / "pictures"
BLOCK = re.compile(r"```python\n(?P<code>.*?)```\n(?:\n```text\n(?P<shown>.*?)```\n)?", flags=re.DOTALL)
NUMBER = re.compile(r"(?<![\w.:/-])\d[\d,]*(?:\.\d+)?(?![\w/-]|\.\d)")
NOT_PROSE = re.compile(
    r"```.*?```|`[^`]*`|\([^)]*\)\[|\]\([^)]*\)|arXiv:[\d.]+|<!--.*?-->|^#.*$", flags=re.DOTALL | re.MULTILINE
)
SMALL_NUMBER = 12
"""Counts up to a dozen may stand in a sentence by themselves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chapter:
    """One page after it was run."""

    text: str
    """The page with the outputs of today."""
    pictures: tuple[tuple[str, str], ...]
    """Name and content of every picture that was drawn."""


def chapter_paths() -> list[Path]:
    """The chapters in reading order."""
    return sorted(STORY.glob("[0-9][0-9]-*.md"))


def run_chapter(text: str) -> Chapter:
    """Run every block of a page."""
    pictures: dict[str, str] = {}
    namespace: dict[str, object] = {"__name__": "__story__", "picture": pictures.__setitem__, "show": show}
    parts: list[str] = []
    end = 0
    for block in BLOCK.finditer(text):
        parts.append(text[end : block.start()])
        parts.append(_block_text(block["code"], _printed(block["code"], namespace)))
        end = block.end()
    parts.append(text[end:])
    return Chapter(text="".join(parts), pictures=tuple(pictures.items()))


def show(table: LessonTable) -> None:
    """Print a table of a lesson."""
    sys.stdout.write(page_text(table_parts(table), style=TextStyle(width=100)))


def _printed(code: str, namespace: dict[str, object]) -> str:
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        exec(compile(code, "<chapter>", "exec"), namespace)
    return output.getvalue()


def _block_text(code: str, printed: str) -> str:
    shown = f"\n```text\n{printed}```\n" if printed else ""
    return f"```python\n{code}```\n{shown}"


def loose_numbers(text: str) -> list[str]:
    """Numbers of the prose that no block of the page contains: nobody computed them."""
    computed = " ".join(block.group() for block in BLOCK.finditer(text))
    return [number for number in _prose_numbers(text) if number.replace(",", "") not in computed.replace(",", "")]


def _prose_numbers(text: str) -> Iterator[str]:
    for found in NUMBER.finditer(NOT_PROSE.sub(" ", text)):
        number = found.group().rstrip(",")
        if "." in number or int(number.replace(",", "")) > SMALL_NUMBER:
            yield number


def update(path: Path, chapter: Chapter, keeps_text: bool) -> None:
    """Write the pictures, and the page unless it keeps its text (it differs in rounding alone)."""
    if not keeps_text:
        path.write_text(chapter.text, encoding="utf-8")
    PICTURES.mkdir(exist_ok=True)
    for name, svg in chapter.pictures:
        (PICTURES / f"{name}.svg").write_text(svg, encoding="utf-8")

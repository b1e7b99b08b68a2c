"""Functions with which pages of the course print a table of a lesson and keep a picture."""

import sys
from pathlib import Path

from shardwise.course.lesson import LessonTable
from shardwise.course.render.text_table import table_parts
from shardwise.render.terminal import TextStyle, page_text

__all__ = ["picture", "show"]

PICTURES = Path("pictures")
COLUMNS = 100


def show(table: LessonTable) -> None:
    """Print a table of a lesson."""
    sys.stdout.write(page_text(table_parts(table, width=COLUMNS), style=TextStyle(width=COLUMNS)))


def picture(name: str, svg: str) -> None:
    """Write a picture to ``pictures/NAME.svg`` in the working directory."""
    PICTURES.mkdir(exist_ok=True)
    (PICTURES / f"{name}.svg").write_text(svg, encoding="utf-8")

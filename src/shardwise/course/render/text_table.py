"""A table of a lesson as text, as wide as its page."""

from collections.abc import Iterator, Sequence
from typing import Literal

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from shardwise.course.lesson import LessonTable
from shardwise.course.render.lesson_cells import is_number_column, row_texts
from shardwise.render.terminal import plain_table

INDENT = 2
PADDINGS = (2, 1, 0)
"""Blanks behind a column, beside the one that parts two of them; fewer where a table needs the room."""


def table_parts(table: LessonTable, *, width: int) -> Iterator[RenderableType]:
    """A table with its note under it, whose words and numbers are whole wherever the width allows."""
    padding, widths = _padding_and_widths(table, width)
    shown = plain_table(title=table.title, padding=(0, padding, 0, 0))
    for index, column in enumerate(table.columns):
        justify: Literal["left", "right"] = "right" if is_number_column(table, index) else "left"
        shown.add_column(column.name, justify=justify, overflow="fold", width=widths[index])
    for cells in row_texts(table):
        shown.add_row(*cells)
    yield shown
    if table.note:
        yield Padding(Text(table.note), (0, 0, 0, INDENT))


def _padding_and_widths(table: LessonTable, width: int) -> tuple[int, Sequence[int | None]]:
    """Blanks behind a column, and the columns' widths: the widest are cut as far as their longest words let them.

    No width is set where even that is too wide.
    """
    rows = row_texts(table)
    texts = [[column.name, *(row[index] for row in rows)] for index, column in enumerate(table.columns)]
    least = [_least_width(one, is_number=is_number_column(table, index)) for index, one in enumerate(texts)]
    widths: list[int] = [max(map(len, one)) for one in texts]
    for padding in PADDINGS:
        room = width - (padding + 1) * (len(widths) - 1)
        if sum(least) <= room:
            while sum(widths) > room:
                _, widest = max((wide, index) for index, wide in enumerate(widths) if wide > least[index])
                widths[widest] -= 1
            return padding, widths
    return PADDINGS[0], [None] * len(widths)


def _least_width(texts: Sequence[str], *, is_number: bool) -> int:
    """The width of the longest word of a column, heading included; a number and its unit are one."""
    heading, *cells = texts
    parts = (*heading.split(), *(cells if is_number else " ".join(cells).split()))
    return max(map(len, parts), default=0)

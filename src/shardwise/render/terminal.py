"""Where text is shown: how wide it may be and whether colour is welcome."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from io import StringIO

from rich import box
from rich.console import Console, RenderableType
from rich.table import Column, Table
from rich.text import Text

PIPE_WIDTH = 80
"""Columns when the reader is not a terminal, so that saved output does not depend on who saved it."""

READABLE_WIDTH = 16
"""Columns that running text in a table needs; below it the rows of the table are stacked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextStyle:
    """The medium of a text."""

    width: int = PIPE_WIDTH
    has_colour: bool = False


PLAIN = TextStyle()


def page_text(parts: Iterable[RenderableType], *, style: TextStyle = PLAIN) -> str:
    """The parts one under the other, as text for the medium; no trailing blanks."""
    written = StringIO()
    console = Console(
        file=written,
        width=style.width,
        force_terminal=style.has_colour,
        color_system="standard" if style.has_colour else None,
        highlight=False,
        markup=False,
        emoji=False,
        legacy_windows=False,
        _environ={},
    )
    for part in parts:
        if isinstance(part, Table) and style.width < PIPE_WIDTH and _least_width(part) > style.width:
            for line in _stacked(part):
                console.print(line)
        else:
            console.print(part)
    return "".join(line.rstrip() + "\n" for line in written.getvalue().splitlines())


def _least_width(table: Table) -> int:
    """The narrowest terminal in which the table still reads as one."""
    return sum(_column_width(column) + table.padding[1] for column in table.columns)


def _column_width(column: Column) -> int:
    texts = [str(column.header), *(str(cell) for cell in column.cells)]
    longest = max(len(text) for text in texts)
    if column.no_wrap:
        return longest
    longest_word = max((len(word) for text in texts for word in text.split()), default=0)
    return max(longest_word, min(longest, READABLE_WIDTH))


def _stacked(table: Table) -> Iterator[Text]:
    """The rows one under the other: a cell a line after its heading, or without headings one line a row."""
    headings = [str(column.header) for column in table.columns] if table.show_header else []
    if table.title:
        yield Text(str(table.title), style="bold")
    for row in zip(*(tuple(column.cells) for column in table.columns), strict=True):
        texts = [str(cell).strip() for cell in row]
        if headings:
            for heading, text in zip(headings, texts, strict=True):
                if text:
                    yield Text.assemble((f"{heading}: " if heading else "", "bold"), text)
            yield Text()
        elif any(texts):
            yield Text.assemble((f"{texts[0]}  ", "bold"), "  ".join(texts[1:]))


def plain_table(*, title: str = "", padding: tuple[int, int, int, int] = (0, 2, 0, 0)) -> Table:
    """A table with a header line and no frame, which reads the same in a terminal, a pipe and a bug report."""
    return Table(
        title=title or None,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=padding,
        header_style="bold",
    )

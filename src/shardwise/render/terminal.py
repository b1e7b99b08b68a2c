"""Where text is shown: how wide it may be and whether colour is welcome."""

from collections.abc import Iterable
from dataclasses import dataclass
from io import StringIO

from rich import box
from rich.console import Console, RenderableType
from rich.table import Table

PIPE_WIDTH = 80
"""Columns when the reader is not a terminal, so that saved output does not depend on who saved it."""


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
        console.print(part)
    return "".join(line.rstrip() + "\n" for line in written.getvalue().splitlines())


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

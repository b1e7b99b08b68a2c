"""Lines of a screen: wrapped to its width, and sections that are set apart only where there is room."""

from collections.abc import Iterator, Sequence
from textwrap import wrap

from rich.text import Text

from shardwise.render.terminal import PIPE_WIDTH, TextStyle, page_text

MAX_LINES = 25
INDENT, DEEPER = "  ", "    "
CUT = " ..."
UNBROKEN = "\u00a0"
"""A blank at which no line ends."""

Section = Sequence[Text]


def screen_text(sections: Sequence[Section], *, style: TextStyle, num_kept_lines: int = 0) -> str:
    """The sections one under the other, with blank lines between them as far as 25 lines allow.

    Args:
        sections: of lines that are no wider than the screen.
        style: the medium.
        num_kept_lines: lines that something printed afterwards needs.
    """
    shown = [section for section in sections if section]
    num_blank = MAX_LINES - num_kept_lines - sum(map(len, shown))
    return page_text(_spaced(shown, num_blank), style=style)


def _spaced(sections: Sequence[Section], num_blank: int) -> Iterator[Text]:
    for position, section in enumerate(sections):
        if 0 < position <= num_blank:
            yield Text()
        yield from section


def screen_width(style: TextStyle) -> int:
    """Columns that a line of the screen has."""
    return min(style.width, PIPE_WIDTH)


def lines_of(text: str, *, width: int, most: int, label: str = "", indent: str = INDENT, look: str = "") -> list[Text]:
    """A text after its label, wrapped; what goes beyond ``most`` lines is cut at a word."""
    wrapped = wrap(
        text,
        width,
        initial_indent=label,
        subsequent_indent=indent,
        max_lines=most,
        placeholder=CUT,
        break_on_hyphens=False,
    )
    lines = [Text(line.replace(UNBROKEN, " "), style=look) for line in wrapped]
    if lines and label.strip() and not look:
        lines[0].stylize("bold", 0, len(label.rstrip()))
    return lines

"""Lines of a screen: wrapped to its width, and sections that are set apart only where there is room."""

import re
from collections.abc import Iterable, Iterator, Sequence
from textwrap import wrap

from rich.text import Text

from shardwise.render.terminal import PIPE_WIDTH, TextStyle, page_text

MAX_LINES = 25
INDENT, DEEPER = "  ", "    "
CUT = " ..."
UNBROKEN = "\u00a0"
"""A blank at which no line ends."""

PART_END = re.compile(r"[.;:,](?= )")
"""The end of a part of a sentence, behind which what is less important may be left out."""

MAX_COMMAND_LINES, CONTINUED = 2, " \\"
OPTION = re.compile(r"( --?\S+) (?!-)")
"""An option before its value, between which no line ends."""

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


def whole_parts(text: str, *, end: str = "") -> Iterator[str]:
    """A text, and what is left of it without its last part, its last two, and so on.

    >>> list(whole_parts("8 GiB: at the edge, but faster"))
    ['8 GiB: at the edge, but faster', '8 GiB: at the edge', '8 GiB']
    """
    yield text
    for part in reversed([*PART_END.finditer(text)]):
        yield text[: part.start()] + end


def fitting_lines(
    texts: Iterable[str], *, width: int, most: int, label: str, indent: str = INDENT, look: str = ""
) -> list[Text]:
    """The first of the texts that is shown whole; the last one cut where none is."""
    lines: list[Text] = []
    for text in texts:
        lines = lines_of(text, width=width, most=most, label=label, indent=indent, look=look)
        if not (lines and lines[-1].plain.endswith(CUT)):
            break
    return lines


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


def command_lines(command: str, label: str, width: int, *, short: str = "") -> list[Text]:
    """A command on at most two lines, the first of them continued by a backslash; ``short`` says a longer one."""
    unbroken = OPTION.sub(rf"\1{UNBROKEN}", command)
    room = width - len(CONTINUED)
    lines = lines_of(unbroken, width=room, most=MAX_COMMAND_LINES + 1, label=label)
    if len(lines) > MAX_COMMAND_LINES or max(map(len, unbroken.split(" "))) > room - len(INDENT):
        said = short or f"the same command with{command[command.rindex(' --') :]}"
        return lines_of(said, width=width, most=MAX_COMMAND_LINES + 1, label=label)
    for line in lines[:-1]:
        line.append(CONTINUED)
    return lines

"""Bars of a lesson in characters: one line a bar, the amount behind it."""

from collections.abc import Iterator

from rich.text import Text

from shardwise.course.lesson import BarPicture
from shardwise.course.render.lesson_cells import cell_text

FULL = "█"
PARTS = ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")
"""Eighths of a cell (Unicode block elements)."""
STYLES = ("blue", "yellow", "green", "magenta")
AMOUNT_WIDTH = 14
ABSENT = "-"


def bar_parts(picture: BarPicture, *, width: int) -> Iterator[Text]:
    """The picture in at most ``width`` columns."""
    yield Text(picture.title, style="bold")
    bars = [bar for group in picture.groups for bar in group.bars]
    group_width = max((len(group.name) for group in picture.groups), default=0)
    name_width = max((len(bar.name) for bar in bars), default=0)
    most = max((bar.amount for bar in bars if bar.amount is not None), default=0.0)
    cells = max(8, width - group_width - name_width - AMOUNT_WIDTH - 3)
    for group in picture.groups:
        for index, bar in enumerate(group.bars):
            line = Text(f"{group.name if index == 0 else '':<{group_width}} {bar.name:<{name_width}} ")
            if bar.amount is None:
                line.append(ABSENT)
            else:
                line.append(drawn(bar.amount, most=most, cells=cells), style=STYLES[index % len(STYLES)])
                line.append(f" {cell_text(bar.amount, picture.unit)}")
            yield line
    if picture.note:
        yield Text(f"  {picture.note}")


def drawn(amount: float, *, most: float, cells: int) -> str:
    """A bar to an eighth of a cell.

    >>> drawn(2.0, most=4.0, cells=5)
    '██▌'
    """
    eighths = round(8 * cells * amount / most) if most > 0 else 0
    whole, rest = divmod(max(0, eighths), 8)
    return FULL * whole + PARTS[rest]

"""Pictures of a lesson in characters: schedules as lanes, messages as arrows, curves as their points, bars as bars."""

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.text import Text

from shardwise.course.lesson import (
    BarPicture,
    CurvePicture,
    GanttBar,
    GanttLane,
    GanttPicture,
    LessonTable,
    MessagePicture,
    Picture,
)
from shardwise.course.render.lesson_cells import cell_text, short_what
from shardwise.course.render.text_table import table_parts

LETTERS = {
    "forward": "F",
    "backward": "B",
    "input_backward": "I",
    "weight_backward": "W",
    "bubble": ".",
    "gather": "G",
    "reduce": "R",
    "optimizer": "O",
    "send": "s",
    "recompute": "r",
}
LETTER_STYLES = {
    "F": "blue",
    "B": "green",
    "I": "green",
    "W": "cyan",
    ".": "bright_black",
    "G": "yellow",
    "R": "red",
    "O": "magenta",
    "r": "yellow",
}
FULL = "█"
PARTS = ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")
"""Eighths of a cell (Unicode block elements)."""
STYLES = ("blue", "yellow", "green", "magenta")
AMOUNT_WIDTH = 14
ABSENT = "-"
MOST_LANES = 16
MOST_ROUNDS = 8
MOST_MESSAGES = 8
MOST_POINTS = 12


def picture_parts(picture: Picture, *, width: int) -> Iterator[RenderableType]:
    """The picture in at most ``width`` columns."""
    if isinstance(picture, GanttPicture):
        yield from _gantt_parts(picture, width)
    elif isinstance(picture, MessagePicture):
        yield from _message_parts(picture)
    elif isinstance(picture, BarPicture):
        yield from _bar_parts(picture, width=width)
    else:
        yield from table_parts(_curve_table(picture), width=width)


def _gantt_parts(picture: GanttPicture, width: int) -> Iterator[RenderableType]:
    yield Text(picture.title, style="bold")
    lanes = picture.lanes[:MOST_LANES]
    end = max((bar.end for lane in picture.lanes for bar in lane.bars), default=0.0)
    label_width = max((len(lane.name) for lane in lanes), default=0)
    peaks = [cell_text(max((held for _, held in lane.held), default=0.0), picture.held_unit) for lane in lanes]
    held_width = max(map(len, peaks), default=0) + 1 if picture.held_name else 0
    cells = max(10, width - label_width - held_width - 2)
    whole = int(end) if picture.unit == "time_units" and float(end).is_integer() and end <= cells else cells
    for lane, peak in zip(lanes, peaks, strict=True):
        line = Text(f"{lane.name:<{label_width}} ")
        for letter in _lane_letters(lane, end=end, cells=whole):
            line.append(letter, style=LETTER_STYLES.get(letter, ""))
        if picture.held_name:
            line.append(f" {peak:>{held_width - 1}}")
        yield line
    if len(picture.lanes) > MOST_LANES:
        yield Text(f"  ... and {len(picture.lanes) - MOST_LANES} more")
    kinds = dict.fromkeys(bar.kind for lane in picture.lanes for bar in lane.bars)
    legend = ", ".join(f"{letter_of(kind)} {kind.replace('_', ' ')}" for kind in kinds)
    last = f"; last column: most {picture.held_name}" if picture.held_name else ""
    yield Text(f"  {legend}; {cell_text(end, picture.unit)} in all{last}")
    if picture.note:
        yield Text(f"  {picture.note}")


def letter_of(kind: str) -> str:
    """The character of a kind of bar."""
    return LETTERS.get(kind, kind[:1] or "?")


def _lane_letters(lane: GanttLane, *, end: float, cells: int) -> str:
    """The kind that a lane is in at the middle of every cell."""
    if end <= 0:
        return ""
    bars = sorted(lane.bars, key=lambda bar: bar.start)
    letters, index = [], 0
    for cell in range(cells):
        moment = (cell + 0.5) * end / cells
        while index < len(bars) and bars[index].end <= moment:
            index += 1
        letters.append(_letter_at(bars, index, moment))
    return "".join(letters)


def _letter_at(bars: Sequence[GanttBar], index: int, moment: float) -> str:
    return letter_of(bars[index].kind) if index < len(bars) and bars[index].start <= moment else " "


def _message_parts(picture: MessagePicture) -> Iterator[RenderableType]:
    yield Text(picture.title, style="bold")
    for number, one in enumerate(picture.rounds[:MOST_ROUNDS], start=1):
        words = [
            f"{picture.rank_names[message.sender]}->{picture.rank_names[message.receiver]}"
            + (" +" if message.adds else " " if message.what else "")
            + short_what(message.what)
            for message in one.messages[:MOST_MESSAGES]
        ]
        more = len(one.messages) - MOST_MESSAGES
        yield Text(f"  {number:>3}  {', '.join(words)}" + (f" and {more} more" if more > 0 else ""))
    if len(picture.rounds) > MOST_ROUNDS:
        yield Text(f"  ... {len(picture.rounds) - MOST_ROUNDS} more; --step prints all, --svg draws them")
    if picture.note:
        yield Text(f"  {picture.note}")


def _curve_table(picture: CurvePicture) -> LessonTable:
    """The curves side by side, at points that they share where there are many."""
    values = sorted({x for curve in picture.curves for x, _ in curve.points})
    stride = -(-len(values) // MOST_POINTS) or 1
    found = [dict(curve.points) for curve in picture.curves]
    columns = [(picture.x.name, picture.x.unit), *((curve.name, picture.y.unit) for curve in picture.curves)]
    return LessonTable(
        title=picture.title,
        head=" | ".join(f"{name}: {unit}" for name, unit in columns),
        rows=tuple((x, *(points.get(x) for points in found)) for x in values[::stride]),
        note=picture.note,
    )


def _bar_parts(picture: BarPicture, *, width: int) -> Iterator[Text]:
    """One line a bar, the amount behind it."""
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

"""Pictures of lessons as one SVG file, one under the other. No scripts."""

from collections.abc import Sequence

from shardwise.course.lesson import Bar, BarPicture, GanttPicture, Lesson, MessagePicture, Picture
from shardwise.course.render.lesson_cells import cell_text
from shardwise.course.render.svg_curves import curves_drawing
from shardwise.course.render.svg_gantt import gantt_drawing
from shardwise.course.render.svg_messages import messages_drawing
from shardwise.errors import SimulationError
from shardwise.render.svg_canvas import MARGIN, WIDTH, Drawing, attribute, framed, text, titled

NAME_WIDTH = 190.0
AMOUNT_WIDTH = 120.0
BAR_HEIGHT = 16.0
GROUP_GAP = 10.0
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7")
"""Okabe and Ito's palette."""
ABSENT = "none"


def lessons_svg(lessons: Sequence[Lesson]) -> str:
    """All pictures of all lessons.

    Raises:
        SimulationError: there is none.
    """
    pictures = [picture for lesson in lessons for picture in lesson.pictures]
    if not pictures:
        raise SimulationError(
            f"simulate {lessons[0].name} has no pictures",
            code="simulate-option",
            fix="leave out --svg; --html writes the tables",
        )
    how = "measured" if lessons[0].is_measured else "simulated"
    return framed([picture_drawing(picture) for picture in pictures], label=f"{how}: {lessons[0].title}")


def picture_svg(picture: Picture) -> str:
    """One picture as an SVG element of a page."""
    return framed([picture_drawing(picture)], label=picture.title)


def picture_drawing(picture: Picture) -> Drawing:
    """The elements of a picture, by its kind."""
    if isinstance(picture, GanttPicture):
        return gantt_drawing(picture)
    if isinstance(picture, MessagePicture):
        return messages_drawing(picture)
    if isinstance(picture, BarPicture):
        return _bars_drawing(picture)
    return curves_drawing(picture)


def _bars_drawing(picture: BarPicture) -> Drawing:
    """Groups on one scale: names on the left, bars, amounts behind them, and below which colour is which."""
    bars = [bar for group in picture.groups for bar in group.bars]
    most = max((bar.amount for bar in bars if bar.amount is not None), default=0.0) or 1.0
    room = WIDTH - 2 * MARGIN - NAME_WIDTH - AMOUNT_WIDTH
    elements, top = [], 0.0
    for group in picture.groups:
        elements.append(text(MARGIN, top + 13, group.name))
        for index, bar in enumerate(group.bars):
            elements += _bar(bar, picture, top=top, length=room * (bar.amount or 0.0) / most, index=index)
            top += BAR_HEIGHT
        top += GROUP_GAP
    left = MARGIN + NAME_WIDTH
    for index, name in enumerate(dict.fromkeys(bar.name for bar in bars)):
        colour = COLOURS[index % len(COLOURS)]
        elements.append(f"<rect x='{left:.1f}' y='{top:.1f}' width='12' height='12' fill='{colour}'/>")
        elements.append(text(left + 18, top + 11, name, style="soft"))
        left += 120
    return titled(picture.title, picture.note, Drawing(elements=tuple(elements), height=top + 22))


def _bar(bar: Bar, picture: BarPicture, *, top: float, length: float, index: int) -> list[str]:
    left = MARGIN + NAME_WIDTH
    amount = ABSENT if bar.amount is None else cell_text(bar.amount, picture.unit)
    colour = COLOURS[index % len(COLOURS)]
    return [
        f"<rect x='{left:.1f}' y='{top + 1:.1f}' width='{max(0.0, length):.1f}' height='{BAR_HEIGHT - 3:.0f}' "
        f"fill='{colour}'><title>{attribute(bar.name)}: {attribute(amount)}</title></rect>",
        text(left + length + 6, top + 13, amount, style="soft"),
    ]

"""Pictures of lessons as one SVG file, one under the other. No scripts."""

from collections.abc import Sequence

from shardwise.course.lesson import BarPicture, GanttPicture, Lesson, MessagePicture, Picture
from shardwise.course.render.svg_bars import bars_drawing
from shardwise.course.render.svg_curves import curves_drawing
from shardwise.course.render.svg_gantt import gantt_drawing
from shardwise.course.render.svg_messages import messages_drawing
from shardwise.errors import SimulationError
from shardwise.render.svg_canvas import Drawing, framed


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
        return bars_drawing(picture)
    return curves_drawing(picture)

"""A front as a picture made of characters."""

from collections.abc import Iterator

from rich.text import Text

from shardwise.render.front_picture import FrontPicture, FrontPoint

PLOT_WIDTH = 56
PLOT_HEIGHT = 12
LABEL_WIDTH = 12


def front_lines(picture: FrontPicture) -> Iterator[Text]:
    """The picture: title, rows from the top down, the axis of time, and what the marks mean."""
    yield Text(picture.title, style="bold")
    for row, cells in enumerate(_cells(picture)):
        label = picture.y.write(picture.y.high) if row == 0 else ""
        label = picture.y.write(picture.y.low) if row == PLOT_HEIGHT - 1 else label
        yield Text(f"{label:>{LABEL_WIDTH}} |" + "".join(cells).rstrip())
    left, right = picture.x.write(picture.x.low), picture.x.write(picture.x.high)
    yield Text(" " * LABEL_WIDTH + " +" + "-" * PLOT_WIDTH)
    yield Text(" " * (LABEL_WIDTH + 2) + left + right.rjust(PLOT_WIDTH - len(left)))
    yield Text(f"(across: {_axis_words(picture, 'x')}; up: {_axis_words(picture, 'y')}; {picture.note})", style="dim")


def _axis_words(picture: FrontPicture, side: str) -> str:
    axis = picture.x if side == "x" else picture.y
    return f"{axis.name}, logarithmic" if axis.is_log else axis.name


def _cells(picture: FrontPicture) -> list[list[str]]:
    """Rows of characters; the front over the others, lower ranks over higher ones."""
    rows = [[" "] * PLOT_WIDTH for _ in range(PLOT_HEIGHT)]
    for point in sorted(picture.points, key=_drawn_last, reverse=True):
        column = round(picture.x.share(point.x) * (PLOT_WIDTH - 1))
        row = round((1 - picture.y.share(point.y)) * (PLOT_HEIGHT - 1))
        rows[row][column] = point.mark
    return rows


def _drawn_last(point: FrontPoint) -> tuple[bool, str]:
    return (not point.is_on_front, point.mark)

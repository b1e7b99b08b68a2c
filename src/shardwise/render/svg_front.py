"""A front as an SVG picture: every plan a dot with its mark, the front joined by steps. No scripts."""

from collections.abc import Iterable, Iterator
from xml.sax.saxutils import escape

from shardwise.render.front_picture import FrontAxis, FrontPicture, FrontPoint
from shardwise.render.svg_canvas import Drawing, framed, line, text, titled

LEFT = 110.0
TOP = 10.0
PLOT_WIDTH = 780.0
PLOT_HEIGHT = 330.0
BOTTOM = 44.0
MARGIN_SHARE = 0.04
RADIUS = 9.0
NUM_TICKS = 4


def front_svg(picture: FrontPicture) -> str:
    """The picture as one SVG element."""
    body = Drawing(elements=tuple(_elements(picture)), height=TOP + PLOT_HEIGHT + BOTTOM)
    return framed([titled(picture.title, picture.note, body)], label=picture.title)


def _elements(picture: FrontPicture) -> Iterator[str]:
    bottom = TOP + PLOT_HEIGHT
    yield line((LEFT, bottom), (LEFT + PLOT_WIDTH, bottom), style="line", width=1)
    yield line((LEFT, TOP), (LEFT, bottom), style="line", width=1)
    for value in _ticks(picture.x):
        yield text(_x(picture, value), bottom + 16, picture.x.write(value), style="soft", anchor="middle")
    for value in _ticks(picture.y):
        y = _y(picture, value)
        yield line((LEFT, y), (LEFT + PLOT_WIDTH, y), style="grid", width=1)
        yield text(LEFT - 6, y + 4, picture.y.write(value), style="soft", anchor="end")
    yield text(LEFT + PLOT_WIDTH / 2, bottom + 34, _name(picture.x), anchor="middle")
    yield text(LEFT + 6, TOP + 4, _name(picture.y))
    yield _front_line(picture)
    for point in sorted(picture.points, key=lambda point: point.is_on_front):
        yield _dot(picture, point)


def _name(axis: FrontAxis) -> str:
    return f"{axis.name} (logarithmic)" if axis.is_log else axis.name


def _ticks(axis: FrontAxis) -> list[float]:
    """Values at equal distances, the two ends included."""
    if axis.high <= axis.low:
        return [axis.low]
    steps = [index / NUM_TICKS for index in range(NUM_TICKS + 1)]
    if axis.is_log:
        return [axis.low * (axis.high / axis.low) ** step for step in steps]
    return [axis.low + (axis.high - axis.low) * step for step in steps]


def _x(picture: FrontPicture, value: float) -> float:
    return LEFT + PLOT_WIDTH * (MARGIN_SHARE + (1 - 2 * MARGIN_SHARE) * picture.x.share(value))


def _y(picture: FrontPicture, value: float) -> float:
    return TOP + PLOT_HEIGHT * (1 - MARGIN_SHARE - (1 - 2 * MARGIN_SHARE) * picture.y.share(value))


def _front_line(picture: FrontPicture) -> str:
    front = lower_left(picture.points)
    places = " ".join(f"{_x(picture, point.x):.1f},{_y(picture, point.y):.1f}" for point in front)
    return f"<polyline points='{places}' fill='none' class='copy' stroke-width='1.5' stroke-dasharray='5 4'/>"


def lower_left(points: Iterable[FrontPoint]) -> list[FrontPoint]:
    """The points that no other beats on both axes, from the left: a front over more than two figures zigzags."""
    front: list[FrontPoint] = []
    for point in sorted(points, key=lambda point: (point.x, point.y)):
        if not front or point.y < front[-1].y:
            front.append(point)
    return front


def _dot(picture: FrontPicture, point: FrontPoint) -> str:
    x, y = _x(picture, point.x), _y(picture, point.y)
    style = "copyfill" if point.is_on_front else "addfill"
    label = f"{point.label}: {picture.x.write(point.x)}, {picture.y.write(point.y)}"
    return (
        f"<g><title>{escape(label)}</title><circle cx='{x:.1f}' cy='{y:.1f}' r='{RADIUS:.0f}' class='{style}'/>"
        f"<text x='{x:.1f}' y='{y + 4:.1f}' text-anchor='middle' fill='#ffffff'>{escape(point.mark)}</text></g>"
    )

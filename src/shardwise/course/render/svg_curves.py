"""Curves of a lesson on linear or logarithmic axes."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil, floor, log2, log10

from shardwise.course.lesson import Column, CurvePicture
from shardwise.course.render.lesson_cells import cell_text
from shardwise.render.svg_canvas import MARGIN, Drawing, attribute, text, titled

LEFT = 110.0
PLOT_WIDTH = 620.0
PLOT_HEIGHT = 300.0
BOTTOM = 44.0
NUM_TICKS = 5
CURVE_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6d31", "#848482")
DASHES = ("", "6 3", "2 3")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Axis:
    low: float
    high: float
    is_log: bool
    is_binary: bool

    def share(self, value: float) -> float:
        """Where a value lies between the ends, from 0 to 1."""
        place = log10(value) if self.is_log else value
        return (place - self.low) / (self.high - self.low)

    def ticks(self) -> list[float]:
        if self.is_log:
            decades = max(1, ceil((self.high - self.low) / 8))
            return [10.0**power for power in range(int(self.low), int(self.high) + 1, decades)]
        rough = (self.high - self.low) / NUM_TICKS
        stride = 2.0 ** ceil(log2(rough)) if self.is_binary else _round_stride(rough)
        first = ceil(self.low / stride)
        return [stride * index for index in range(first, floor(self.high / stride + 1e-9) + 1)]


def _round_stride(rough: float) -> float:
    """The next larger of 1, 2 and 5 times a power of ten."""
    power = 10.0 ** floor(log10(rough))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))


def curves_drawing(picture: CurvePicture) -> Drawing:
    """Axes, one line a curve, and their names on the right."""
    x_axis = _axis([x for curve in picture.curves for x, _ in curve.points], picture.x, is_log=picture.is_x_log)
    y_axis = _axis([y for curve in picture.curves for _, y in curve.points], picture.y, is_log=picture.is_y_log)
    elements = [*_axes(picture, x_axis, y_axis)]
    for index, curve in enumerate(picture.curves):
        colour, dash = CURVE_COLOURS[index % len(CURVE_COLOURS)], DASHES[index % len(DASHES)]
        places = [
            (LEFT + PLOT_WIDTH * x_axis.share(x), PLOT_HEIGHT * (1 - y_axis.share(y)) + 8)
            for x, y in curve.points
            if y > 0 or not picture.is_y_log
        ]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        elements.append(
            f"<polyline points='{line}' fill='none' stroke='{colour}' stroke-width='2' stroke-dasharray='{dash}'>"
            f"<title>{attribute(curve.name)}</title></polyline>"
        )
        y = 20 + 18 * index
        x = LEFT + PLOT_WIDTH + 16
        elements.append(
            f"<line x1='{x:.0f}' y1='{y - 4}' x2='{x + 24:.0f}' y2='{y - 4}' stroke='{colour}' stroke-width='2' "
            f"stroke-dasharray='{dash}'/>"
        )
        elements.append(text(x + 30, y, curve.name))
    return titled(picture.title, picture.note, Drawing(elements=tuple(elements), height=PLOT_HEIGHT + BOTTOM + 8))


def _axis(values: list[float], column: Column, *, is_log: bool) -> _Axis:
    is_binary = column.unit == "bytes"
    if is_log:
        positive = [value for value in values if value > 0] or [1.0]
        lowest, highest = floor(log10(min(positive))), ceil(log10(max(positive)))
        return _Axis(low=lowest, high=max(highest, lowest + 1), is_log=True, is_binary=is_binary)
    high = max(values, default=1.0) or 1.0
    return _Axis(low=min(0.0, min(values, default=0.0)), high=high, is_log=False, is_binary=is_binary)


def _axes(picture: CurvePicture, x_axis: _Axis, y_axis: _Axis) -> Iterator[str]:
    bottom = PLOT_HEIGHT + 8
    for tick in x_axis.ticks():
        x = LEFT + PLOT_WIDTH * x_axis.share(tick)
        yield f"<line x1='{x:.1f}' y1='8' x2='{x:.1f}' y2='{bottom:.1f}' class='grid'/>"
        yield text(x, bottom + 16, cell_text(tick, picture.x.unit), style="soft", anchor="middle")
    for tick in y_axis.ticks():
        y = PLOT_HEIGHT * (1 - y_axis.share(tick)) + 8
        yield f"<line x1='{LEFT:.0f}' y1='{y:.1f}' x2='{LEFT + PLOT_WIDTH:.0f}' y2='{y:.1f}' class='grid'/>"
        yield text(LEFT - 8, y + 4, cell_text(tick, picture.y.unit), style="soft", anchor="end")
    yield text(LEFT + PLOT_WIDTH / 2, bottom + 34, picture.x.name, anchor="middle")
    middle = PLOT_HEIGHT / 2 + 8
    yield text(
        MARGIN, middle, picture.y.name, anchor="middle", extra=f"transform='rotate(-90 {MARGIN:.0f} {middle:.0f})'"
    )

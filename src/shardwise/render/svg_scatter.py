"""Predicted against measured as an SVG picture on two logarithmic axes, one colour a family. No scripts."""

from collections.abc import Iterable, Iterator, Sequence
from colorsys import hls_to_rgb
from dataclasses import dataclass
from math import ceil, floor, log10
from xml.sax.saxutils import escape

from shardwise.render.svg_canvas import on_white

PLOT_SIZE = 560.0
LEFT = 70.0
TOP = 40.0
BOTTOM = 54.0
LEGEND_WIDTH = 210.0
LEGEND_ROW_HEIGHT = 18.0
POINT_RADIUS = 3.0
HUE_STEP_DEGREES = 137.508
"""The golden angle: any number of neighbouring families get hues far apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScatterPoint:
    """One run: coordinates in the unit of the axes, and what its tooltip says.

    ``is_hollow`` marks runs of a second kind, which the legend names.
    """

    family: str
    measured_ratio: float
    """Measured figure over the unit of the axes."""
    predicted_ratio: float
    label: str
    is_hollow: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LogScale:
    """Pixels of decades."""

    low_ratio: float
    """Power of ten at the lower end."""
    high_ratio: float

    def pixels(self, ratio: float) -> float:
        """Distance of a value from the lower end."""
        return PLOT_SIZE * (log10(ratio) - self.low_ratio) / (self.high_ratio - self.low_ratio)


def scatter_svg(
    points: Sequence[ScatterPoint], *, title: str, unit: str, hollow_note: str = "shown, not counted"
) -> str:
    """The picture as one SVG element: every run, the diagonal, and lines at 20 % too little and too much."""
    colours = family_colours(point.family for point in points)
    scale = _scale_of(points)
    height = max(TOP + PLOT_SIZE + BOTTOM, TOP + LEGEND_ROW_HEIGHT * (len(colours) + 1))
    parts = (
        f"<text x='0' y='16' font-weight='bold' font-size='14'>{escape(title)}</text>",
        *_axes(scale, unit=unit),
        *(_point(point, scale=scale, colour=colours[point.family]) for point in points),
        *_legend(colours, hollow_note=hollow_note),
    )
    return on_white(parts, size=(LEFT + PLOT_SIZE + LEGEND_WIDTH, height), label=title, font_size=12)


def family_colours(families: Iterable[str]) -> dict[str, str]:
    """One colour for every family, in the order they first appear."""
    names = tuple(dict.fromkeys(families))
    return {name: _colour(index) for index, name in enumerate(names)}


def _colour(index: int) -> str:
    """Hues a golden angle apart, alternately darker and lighter, as hexadecimal red, green and blue."""
    lightness = 0.4 if index % 2 else 0.52
    parts = hls_to_rgb(index * HUE_STEP_DEGREES / 360 % 1, lightness, 0.7)
    return "#" + "".join(f"{round(255 * part):02x}" for part in parts)


def _scale_of(points: Sequence[ScatterPoint]) -> LogScale:
    values = [value for point in points for value in (point.measured_ratio, point.predicted_ratio) if value > 0]
    low = floor(log10(min(values))) if values else 0
    high = ceil(log10(max(values))) if values else 1
    return LogScale(low_ratio=low, high_ratio=max(high, low + 1))


def _axes(scale: LogScale, *, unit: str) -> Iterator[str]:
    bottom, right = TOP + PLOT_SIZE, LEFT + PLOT_SIZE
    yield f"<rect x='{LEFT}' y='{TOP}' width='{PLOT_SIZE}' height='{PLOT_SIZE}' fill='none' stroke='#888'/>"
    for decade in range(int(scale.low_ratio), int(scale.high_ratio) + 1):
        offset = scale.pixels(10.0**decade)
        x, y = LEFT + offset, bottom - offset
        yield f"<path d='M{x:.1f} {TOP}V{bottom}M{LEFT} {y:.1f}H{right}' stroke='#ddd'/>"
        yield f"<text x='{x:.1f}' y='{bottom + 16}' text-anchor='middle'>{10.0**decade:g}</text>"
        yield f"<text x='{LEFT - 6}' y='{y + 4:.1f}' text-anchor='end'>{10.0**decade:g}</text>"
    yield _ratio_line(scale, ratio=1.0, style="stroke='#222'")
    for ratio in (0.8, 1.2):
        yield _ratio_line(scale, ratio=ratio, style="stroke='#888' stroke-dasharray='4 4'")
    middle = TOP + PLOT_SIZE / 2
    yield f"<text x='{LEFT + PLOT_SIZE / 2}' y='{bottom + 38}' text-anchor='middle'>measured, {escape(unit)}</text>"
    yield (
        f"<text x='16' y='{middle}' text-anchor='middle' transform='rotate(-90 16 {middle})'>"
        f"predicted, {escape(unit)}; dashed: 20 % less and more</text>"
    )


def _ratio_line(scale: LogScale, *, ratio: float, style: str) -> str:
    """Where predicted is ``ratio`` times measured, clipped to the plot."""
    shift = PLOT_SIZE * log10(ratio) / (scale.high_ratio - scale.low_ratio)
    start, end = max(0.0, -shift), min(PLOT_SIZE, PLOT_SIZE - shift)
    bottom = TOP + PLOT_SIZE
    return (
        f"<line x1='{LEFT + start:.1f}' y1='{bottom - start - shift:.1f}' "
        f"x2='{LEFT + end:.1f}' y2='{bottom - end - shift:.1f}' {style}/>"
    )


def _point(point: ScatterPoint, *, scale: LogScale, colour: str) -> str:
    x = LEFT + scale.pixels(point.measured_ratio)
    y = TOP + PLOT_SIZE - scale.pixels(point.predicted_ratio)
    fill = "none" if point.is_hollow else colour
    return (
        f"<circle cx='{x:.1f}' cy='{y:.1f}' r='{POINT_RADIUS}' fill='{fill}' stroke='{colour}' fill-opacity='0.7'>"
        f"<title>{escape(point.label)}</title></circle>"
    )


def _legend(colours: dict[str, str], *, hollow_note: str) -> Iterator[str]:
    x = LEFT + PLOT_SIZE + 18
    for index, (family, colour) in enumerate(colours.items()):
        y = TOP + LEGEND_ROW_HEIGHT * index
        yield f"<circle cx='{x}' cy='{y + 6:.0f}' r='5' fill='{colour}'/>"
        yield f"<text x='{x + 12}' y='{y + 10:.0f}'>{escape(family)}</text>"
    y = TOP + LEGEND_ROW_HEIGHT * len(colours)
    yield f"<text x='{x - 5}' y='{y + 10:.0f}' fill='#666'>hollow: {escape(hollow_note)}</text>"

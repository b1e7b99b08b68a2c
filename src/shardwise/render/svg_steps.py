"""Curves over the steps of a run as an SVG picture: a line for each, points where few are measured, a dashed guide."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import floor, isfinite, log10
from xml.sax.saxutils import escape

from shardwise.render.svg_canvas import on_white

LEFT, TOP, BOTTOM, RIGHT = 78.0, 34.0, 44.0, 16.0
PLOT_WIDTH, PLOT_HEIGHT = 480.0, 210.0
MOST_POINTS = 480
"""One a pixel: more steps are drawn as means."""
NUM_TICKS = 5
POINT_RADIUS = 3.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One quantity over the steps."""

    name: str
    colour: str
    points: tuple[tuple[int, float], ...]
    """Steps and values, in order; steps without a finite value are left out."""
    has_marks: bool = False
    """Whether the points are drawn, as those of values that are measured now and then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Guide:
    """A level that a curve is held against."""

    name: str
    level: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """Pixels of steps and values."""

    first_step: int
    last_step: int
    low: float
    high: float

    def x(self, step: float) -> float:
        """Distance of a step from the left."""
        return LEFT + PLOT_WIDTH * (step - self.first_step) / max(1, self.last_step - self.first_step)

    def y(self, value: float) -> float:
        """Distance of a value from the top."""
        return TOP + PLOT_HEIGHT * (1 - (value - self.low) / (self.high - self.low))


def curves_svg(
    curves: Sequence[Curve],
    *,
    title: str,
    amount: Callable[[float], str],
    guide: Guide | None = None,
    starts_at_zero: bool = False,
) -> str:
    """The picture as one SVG element; empty where no curve has a point.

    Args:
        curves: what is drawn, the first at the back.
        title: above the picture.
        amount: how a value is written on the axis.
        guide: a level to draw as a dashed line.
        starts_at_zero: whether the axis of values begins at zero.
    """
    drawn = [thinned(curve) for curve in curves if curve.points]
    if not drawn:
        return ""
    frame = _frame(drawn, guide, starts_at_zero=starts_at_zero)
    parts = (
        f"<text x='0' y='16' font-weight='bold' font-size='14'>{escape(title)}</text>",
        *_axes(frame, amount),
        *(part for curve in drawn for part in _drawn(curve, frame, amount)),
        *(_guide(guide, frame) if guide is not None else ()),
        *_key(drawn, guide),
    )
    size = (LEFT + PLOT_WIDTH + RIGHT, TOP + PLOT_HEIGHT + BOTTOM)
    return on_white(parts, size=size, label=title, font_size=12)


def thinned(curve: Curve) -> Curve:
    """The curve with at most one point a pixel: means of neighbouring steps, at their middle.

    >>> thinned(Curve(name="loss", colour="#000", points=((1, 2.0), (2, float("nan"))))).points
    ((1, 2.0),)
    """
    points = [(step, value) for step, value in curve.points if isfinite(value)]
    width = -(-len(points) // MOST_POINTS) if not curve.has_marks else 1
    groups = [points[start : start + width] for start in range(0, len(points), width)] if width else []
    means = tuple((group[len(group) // 2][0], sum(value for _, value in group) / len(group)) for group in groups)
    return Curve(name=curve.name, colour=curve.colour, points=means, has_marks=curve.has_marks)


def ticks(low: float, high: float) -> list[float]:
    """Round numbers from ``low`` to ``high``, four to eight of them.

    >>> ticks(0.0, 4.2)
    [0.0, 1.0, 2.0, 3.0, 4.0]
    """
    rough = (high - low) / NUM_TICKS
    power = 10.0 ** floor(log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= 0.7 * rough)
    first = -(-low // step)
    return [step * (first + index) for index in range(2 * NUM_TICKS) if step * (first + index) <= high * (1 + 1e-9)]


def _frame(curves: Sequence[Curve], guide: Guide | None, *, starts_at_zero: bool) -> Frame:
    steps = [step for curve in curves for step, _ in curve.points]
    values = [value for curve in curves for _, value in curve.points] + ([guide.level] if guide is not None else [])
    if not steps:
        return Frame(first_step=0, last_step=1, low=0.0, high=1.0)
    low, high = (min(0.0, *values) if starts_at_zero else min(values)), max(values)
    room = (high - low or abs(high) or 1.0) * 0.06
    return Frame(
        first_step=min(steps), last_step=max(steps), low=low if starts_at_zero else low - room, high=high + room
    )


def _axes(frame: Frame, amount: Callable[[float], str]) -> Iterator[str]:
    bottom, right = TOP + PLOT_HEIGHT, LEFT + PLOT_WIDTH
    for value in ticks(frame.low, frame.high):
        y = frame.y(value)
        yield f"<path d='M{LEFT} {y:.1f}H{right}' stroke='#e4e4e4'/>"
        yield f"<text x='{LEFT - 6}' y='{y + 4:.1f}' text-anchor='end' fill='#555'>{escape(amount(value))}</text>"
    yield f"<path d='M{LEFT} {TOP}V{bottom}H{right}' fill='none' stroke='#888'/>"
    for step in {
        frame.first_step,
        frame.last_step,
        *(round(value) for value in ticks(frame.first_step, frame.last_step + 1e-6)),
    }:
        is_end = step in (frame.first_step, frame.last_step)
        is_near_end = min(abs(frame.x(step) - frame.x(end)) for end in (frame.first_step, frame.last_step)) < 30
        if frame.first_step <= step <= frame.last_step and (is_end or not is_near_end):
            yield f"<text x='{frame.x(step):.1f}' y='{bottom + 16}' text-anchor='middle' fill='#555'>{step:,}</text>"


def _drawn(curve: Curve, frame: Frame, amount: Callable[[float], str]) -> Iterator[str]:
    places = [(frame.x(step), frame.y(value)) for step, value in curve.points]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    yield f"<polyline points='{line}' fill='none' stroke='{curve.colour}' stroke-width='1.6' stroke-linejoin='round'/>"
    is_dotted = curve.has_marks or len(places) == 1
    for (x, y), (step, value) in zip(places, curve.points, strict=True) if is_dotted else ():
        tip = escape(f"{curve.name} after step {step:,}: {amount(value)}")
        place = f"cx='{x:.1f}' cy='{y:.1f}' r='{POINT_RADIUS}'"
        yield f"<circle {place} fill='{curve.colour}'><title>{tip}</title></circle>"


def _guide(guide: Guide, frame: Frame) -> Iterator[str]:
    y = frame.y(guide.level)
    yield f"<path d='M{LEFT} {y:.1f}H{LEFT + PLOT_WIDTH}' stroke='#222' stroke-dasharray='6 4'/>"


def _key(curves: Sequence[Curve], guide: Guide | None) -> Iterator[str]:
    """The names below the picture, each behind a piece of its line."""
    x, y = LEFT, TOP + PLOT_HEIGHT + 36
    entries = [(curve.name, f"stroke='{curve.colour}' stroke-width='2.5'") for curve in curves]
    if guide is not None:
        entries.append((guide.name, "stroke='#222' stroke-dasharray='6 4'"))
    for name, style in entries:
        yield f"<path d='M{x:.0f} {y - 4:.0f}h22' {style}/>"
        yield f"<text x='{x + 28:.0f}' y='{y:.0f}'>{escape(name)}</text>"
        x += 46 + 6.6 * len(name)

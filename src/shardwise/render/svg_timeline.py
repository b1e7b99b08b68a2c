"""A predicted step as an SVG picture: one lane per stream of every drawn rank. No scripts."""

from collections.abc import Iterator
from math import floor, log10
from xml.sax.saxutils import escape

from shardwise.predict.timeline import StepTimeline
from shardwise.render.svg_canvas import colour_key, key_height, on_white
from shardwise.render.timeline_lanes import Lane, rank_title, span_colour, span_kinds, timeline_end_s, timeline_lanes
from shardwise.simulate.spans import Span
from shardwise.units import Seconds, format_seconds

LABEL_WIDTH = 110.0
PLOT_WIDTH = 1000.0
LANE_HEIGHT = 20.0
BAR_HEIGHT = 16.0
RANK_GAP = 26.0
TOP = 72.0
WIDEST_TICK_PIXELS = 160.0
KEY_COLUMNS = 6
NARROWEST_PIXELS = 0.4
"""Narrower neighbours of one kind are drawn as one."""
NARROWEST_BAR = 1.0
"""A lane with one short collective, such as the norm's, is not to look empty."""


def timeline_svg(timeline: StepTimeline, *, title: str, end_s: Seconds = 0.0) -> str:
    """The picture as one SVG element, ready for a file or a page.

    Args:
        end_s: at least so much time fills the width, so that pictures can be compared.
    """
    end_s = max([end_s, timeline_end_s(timeline)])
    pixels_per_s = PLOT_WIDTH / end_s if end_s else 0.0
    rows: list[str] = []
    y, stage = TOP, None
    for lane in timeline_lanes(timeline):
        if lane.rank.stage != stage:
            stage = lane.rank.stage
            y += RANK_GAP
            heading = escape(rank_title(lane.rank, source=timeline.source))
            rows.append(f"<text x='0' y='{y - 6:.1f}' font-weight='bold'>{heading}</text>")
        rows += _lane(lane, y, pixels_per_s)
        y += LANE_HEIGHT
    kinds = span_kinds(timeline)
    width = LABEL_WIDTH + PLOT_WIDTH
    summary = f"{title}: {timeline.source} step of {format_seconds(timeline.step_s)}"
    parts = (
        f"<text x='0' y='16' font-weight='bold' font-size='14'>{escape(summary)}</text>",
        f"<text x='0' y='34'>{escape(timeline.notes[0])}</text>",
        *_ticks(end_s, pixels_per_s, y),
        *rows,
        *colour_key(kinds, top=y + 8, width=width, num_columns=KEY_COLUMNS),
    )
    height = y + 18 + key_height(len(kinds), num_columns=KEY_COLUMNS)
    return on_white(parts, size=(width + 10, height), label=summary, font_size=12)


def _lane(lane: Lane, y: float, pixels_per_s: float) -> Iterator[str]:
    yield f"<text x='8' y='{y + 12:.1f}'>{escape(lane.stream)}</text>"
    for first, last, count in _merged(lane.spans, pixels_per_s):
        x = LABEL_WIDTH + pixels_per_s * first.start_s
        width = max(NARROWEST_BAR, pixels_per_s * (last.end_s - first.start_s))
        what = first.name if count == 1 else f"{count} spans from {first.name} to {last.name}"
        number = "" if first.micro_batch is None else f", micro-batch {first.micro_batch}"
        text = f"{what}{number}: {format_seconds(last.end_s - first.start_s)}"
        yield (
            f"<rect x='{x:.2f}' y='{y:.1f}' width='{width:.2f}' height='{BAR_HEIGHT:.0f}' "
            f"fill='{span_colour(first.category)}'><title>{escape(text)}</title></rect>"
        )


def _merged(spans: tuple[Span, ...], pixels_per_s: float) -> Iterator[tuple[Span, Span, int]]:
    """Spans that touch and are too narrow to tell apart, as the first and the last of them.

    Those of different kinds are together no wider than the narrowest bar.
    """
    first: Span | None = None
    last: Span | None = None
    count = 0
    for span in spans:
        if first is not None and last is not None:
            is_near = pixels_per_s * (span.start_s - last.end_s) < NARROWEST_PIXELS
            is_narrow = pixels_per_s * span.duration_s < NARROWEST_PIXELS
            is_alike = span.category == first.category or pixels_per_s * (span.end_s - first.start_s) < NARROWEST_BAR
            if is_near and is_narrow and is_alike:
                last, count = span, count + 1
                continue
            yield first, last, count
        first = last = span
        count = 1
    if first is not None and last is not None:
        yield first, last, count


def _ticks(end_s: Seconds, pixels_per_s: float, bottom: float) -> Iterator[str]:
    """Moments of the step above the lanes, at round numbers of seconds, and a rule under each."""
    if not end_s:
        return
    power_s = 10.0 ** floor(log10(WIDEST_TICK_PIXELS / pixels_per_s))
    apart_s = max(factor * power_s for factor in (1, 2, 5) if factor * power_s * pixels_per_s <= WIDEST_TICK_PIXELS)
    for number in range(floor(end_s / apart_s) + 1):
        x = LABEL_WIDTH + pixels_per_s * number * apart_s
        yield f"<line x1='{x:.1f}' x2='{x:.1f}' y1='{TOP - 8:.0f}' y2='{bottom:.1f}' stroke='#ddd'/>"
        yield f"<text x='{x:.1f}' y='{TOP - 12:.0f}' fill='#666'>{escape(format_seconds(number * apart_s))}</text>"

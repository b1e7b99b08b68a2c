"""A predicted step as an SVG picture: one lane per stream of every drawn rank. No scripts."""

from collections.abc import Iterator
from xml.sax.saxutils import escape

from shardwise.predict.timeline import StepTimeline
from shardwise.render.timeline_lanes import SPAN_COLOURS, Lane, rank_title, span_colour, timeline_lanes
from shardwise.simulate.spans import Span
from shardwise.units import format_seconds

LABEL_WIDTH = 110.0
PLOT_WIDTH = 1000.0
LANE_HEIGHT = 20.0
BAR_HEIGHT = 16.0
RANK_GAP = 26.0
TOP = 52.0
LEGEND_COLUMNS = 6
LEGEND_ROW_HEIGHT = 20.0
NARROWEST_PIXELS = 0.4
"""Narrower neighbours of one kind are drawn as one."""
FONT = "font-family='system-ui, sans-serif' font-size='12'"


def timeline_svg(timeline: StepTimeline, *, title: str) -> str:
    """The picture as one SVG element, ready for a file or a page."""
    end_s = max([timeline.step_s, *(span.end_s for rank in timeline.ranks for span in rank.spans)])
    pixels_per_s = PLOT_WIDTH / end_s if end_s else 0.0
    rows: list[str] = []
    y, stage = TOP, None
    for lane in timeline_lanes(timeline):
        if lane.rank.stage != stage:
            stage = lane.rank.stage
            y += RANK_GAP
            rows.append(f"<text x='0' y='{y - 6:.1f}' font-weight='bold'>{escape(rank_title(lane.rank))}</text>")
        rows += _lane(lane, y, pixels_per_s)
        y += LANE_HEIGHT
    legend_top = y + 14
    height = legend_top + LEGEND_ROW_HEIGHT * -(-len(SPAN_COLOURS) // LEGEND_COLUMNS)
    width = LABEL_WIDTH + PLOT_WIDTH + 10
    summary = f"{title}: simulated step of {format_seconds(timeline.step_s)}"
    parts = [
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width:.0f} {height:.0f}' width='{width:.0f}' "
        f"role='img' aria-label='{_attribute(summary)}'>",
        f"<rect width='{width:.0f}' height='{height:.0f}' fill='white'/>",
        f"<g {FONT} fill='#222'>",
        f"<text x='0' y='16' font-weight='bold' font-size='14'>{escape(summary)}</text>",
        f"<text x='0' y='34'>{escape(timeline.notes[0])}</text>",
        *rows,
        *_legend(legend_top),
        "</g>",
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _lane(lane: Lane, y: float, pixels_per_s: float) -> Iterator[str]:
    yield f"<text x='8' y='{y + 12:.1f}'>{escape(lane.stream)}</text>"
    for first, last, count in _merged(lane.spans, pixels_per_s):
        x = LABEL_WIDTH + pixels_per_s * first.start_s
        width = max(NARROWEST_PIXELS, pixels_per_s * (last.end_s - first.start_s))
        what = first.name if count == 1 else f"{count} spans from {first.name} to {last.name}"
        number = "" if first.micro_batch is None else f", micro-batch {first.micro_batch}"
        text = f"{what}{number}: {format_seconds(last.end_s - first.start_s)}"
        yield (
            f"<rect x='{x:.2f}' y='{y:.1f}' width='{width:.2f}' height='{BAR_HEIGHT:.0f}' "
            f"fill='{span_colour(first.category)}'><title>{escape(text)}</title></rect>"
        )


def _merged(spans: tuple[Span, ...], pixels_per_s: float) -> Iterator[tuple[Span, Span, int]]:
    """Spans of one kind that touch and are too narrow to tell apart, as the first and the last of them."""
    first: Span | None = None
    last: Span | None = None
    count = 0
    for span in spans:
        if first is not None and last is not None:
            is_near = pixels_per_s * (span.start_s - last.end_s) < NARROWEST_PIXELS
            is_narrow = pixels_per_s * span.duration_s < NARROWEST_PIXELS
            if is_near and is_narrow and span.category == first.category:
                last, count = span, count + 1
                continue
            yield first, last, count
        first = last = span
        count = 1
    if first is not None and last is not None:
        yield first, last, count


def _legend(top: float) -> Iterator[str]:
    column_width = (LABEL_WIDTH + PLOT_WIDTH) / LEGEND_COLUMNS
    for number, (category, colour) in enumerate(SPAN_COLOURS.items()):
        row, column = divmod(number, LEGEND_COLUMNS)
        x, y = column * column_width, top + row * LEGEND_ROW_HEIGHT
        yield f"<rect x='{x:.1f}' y='{y - 10:.1f}' width='12' height='12' fill='{colour}'/>"
        yield f"<text x='{x + 18:.1f}' y='{y:.1f}'>{escape(category)}</text>"


def _attribute(text: str) -> str:
    return escape(text, {"'": "&apos;", '"': "&quot;"})

"""A schedule as lanes: bars for work, hatched bubbles, and under each lane what the rank holds at that moment."""

from collections.abc import Iterator, Sequence

from shardwise.course.lesson import GanttBar, GanttLane, GanttPicture
from shardwise.course.render.lesson_cells import cell_text
from shardwise.render.svg_canvas import MARGIN, WIDTH, Drawing, attribute, text, titled

LABEL_WIDTH = 110.0
PLOT_WIDTH = WIDTH - LABEL_WIDTH - MARGIN
BAR_HEIGHT = 20.0
HELD_HEIGHT = 18.0
LANE_GAP = 6.0
NARROWEST_PIXELS = 0.4
"""Narrower neighbours of one kind are drawn as one."""
LETTER_PIXELS = 7.0
SMALL = "font-size='10'"
BAR_COLOURS = {
    "forward": "#0072b2",
    "backward": "#009e73",
    "input_backward": "#117f6b",
    "weight_backward": "#7570b3",
    "recompute": "#88b0d0",
    "optimizer": "#cc79a7",
    "gather": "#e69f00",
    "reduce": "#d55e00",
    "send": "#8c6d31",
}
OTHER_COLOURS = ("#b3446c", "#654522", "#848482", "#f6a600")


def gantt_drawing(picture: GanttPicture) -> Drawing:
    """All lanes on one time axis."""
    end = max((bar.end for lane in picture.lanes for bar in lane.bars), default=0.0)
    scale = PLOT_WIDTH / end if end else 0.0
    most_held = max((amount for lane in picture.lanes for _, amount in lane.held), default=0.0)
    colours = _colours(picture)
    elements: list[str] = []
    y = 4.0
    for lane in picture.lanes:
        elements += _lane(lane, picture, y=y, scale=scale, colours=colours)
        y += BAR_HEIGHT
        if picture.held_name and most_held:
            elements += _held(lane, y=y, scale=scale, most=most_held)
            peak = cell_text(max((amount for _, amount in lane.held), default=0.0), picture.held_unit)
            elements.append(text(LABEL_WIDTH - 6, y + 14, f"most {peak}", style="soft", anchor="end", extra=SMALL))
            y += HELD_HEIGHT
        y += LANE_GAP
    elements += [
        text(LABEL_WIDTH, y + 12, "0", style="soft"),
        text(LABEL_WIDTH + PLOT_WIDTH, y + 12, _time_text(end, picture), style="soft", anchor="end"),
        *_legend(picture, colours, y=y + 32),
    ]
    return titled(picture.title, picture.note, Drawing(elements=tuple(elements), height=y + 44))


def _time_text(moment: float, picture: GanttPicture) -> str:
    words = cell_text(moment, picture.unit)
    return f"{words} units" if picture.unit == "time_units" else words


def _colours(picture: GanttPicture) -> dict[str, str]:
    kinds = dict.fromkeys(bar.kind for lane in picture.lanes for bar in lane.bars if bar.kind != "bubble")
    others = iter(OTHER_COLOURS * len(kinds))
    return {kind: BAR_COLOURS.get(kind) or next(others) for kind in kinds}


def _lane(lane: GanttLane, picture: GanttPicture, *, y: float, scale: float, colours: dict[str, str]) -> Iterator[str]:
    yield text(MARGIN, y + 14, lane.name)
    for first, last, count in merged(sorted(lane.bars, key=lambda bar: bar.start), scale):
        x, width = LABEL_WIDTH + scale * first.start, max(NARROWEST_PIXELS, scale * (last.end - first.start))
        look = "class='bubble'" if first.kind == "bubble" else f"fill='{colours[first.kind]}'"
        words = f"{count} x {first.kind}" if count > 1 else f"{first.kind} {first.label}".strip()
        span = f"{_time_text(first.start, picture)} to {_time_text(last.end, picture)}"
        yield (
            f"<rect x='{x:.2f}' y='{y:.1f}' width='{max(NARROWEST_PIXELS, width - 0.6):.2f}' "
            f"height='{BAR_HEIGHT:.0f}' {look}><title>{attribute(f'{words}, {span}')}</title></rect>"
        )
        if count == 1 and first.label and width > LETTER_PIXELS * len(first.label) + 3:
            yield (
                f"<text x='{x + width / 2:.1f}' y='{y + 14:.1f}' fill='#ffffff' font-size='11' "
                f"text-anchor='middle'>{attribute(first.label)}</text>"
            )


def merged(bars: Sequence[GanttBar], scale: float) -> Iterator[tuple[GanttBar, GanttBar, int]]:
    """Bars of one kind that touch and are too narrow to tell apart, as the first and the last of them."""
    first: GanttBar | None = None
    last: GanttBar | None = None
    count = 0
    for bar in bars:
        if first is not None and last is not None:
            is_narrow = scale * (bar.end - bar.start) < NARROWEST_PIXELS
            if is_narrow and scale * (bar.start - last.end) < NARROWEST_PIXELS and bar.kind == first.kind:
                last, count = bar, count + 1
                continue
            yield first, last, count
        first, last, count = bar, bar, 1
    if first is not None and last is not None:
        yield first, last, count


def _held(lane: GanttLane, *, y: float, scale: float, most: float) -> Iterator[str]:
    """A staircase as high as what is held, on the scale of the fullest lane."""
    bottom = y + HELD_HEIGHT
    path = [f"M{LABEL_WIDTH:.1f} {bottom:.1f}"]
    for moment, amount in lane.held:
        path += [f"H{LABEL_WIDTH + scale * moment:.2f}", f"V{bottom - (HELD_HEIGHT - 3) * amount / most:.2f}"]
    path += [f"H{LABEL_WIDTH + PLOT_WIDTH:.2f}", f"V{bottom:.1f}Z"]
    yield f"<path d='{''.join(path)}' class='held'/>"


def _legend(picture: GanttPicture, colours: dict[str, str], *, y: float) -> Iterator[str]:
    x = LABEL_WIDTH
    looks = [(kind.replace("_", " "), f"fill='{colour}'") for kind, colour in colours.items()]
    if any(bar.kind == "bubble" for lane in picture.lanes for bar in lane.bars):
        looks.append(("bubble", "class='bubble'"))
    if picture.held_name:
        looks.append((picture.held_name, "class='held'"))
    for words, look in looks:
        yield f"<rect x='{x:.1f}' y='{y - 10:.1f}' width='12' height='12' {look}/>"
        yield text(x + 17, y, words, style="soft")
        x += 34 + 6.4 * len(words)
    if picture.numbered:
        yield text(x, y, f"number: {picture.numbered}", style="soft")

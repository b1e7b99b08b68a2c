"""Measured steps and collectives as bars: what each rank's device did, what of each unit's collectives is exposed."""

from collections.abc import Iterator, Sequence
from html import escape

from shardwise.measure.profile_records import TraceProfile, UnitExposure
from shardwise.units import format_percent, format_seconds

EXPOSED_COLOUR = "#d55e00"
HIDDEN_COLOUR = "#56b4e9"
PART_COLOURS = {
    "compute": "#0072b2",
    "exposed communication": EXPOSED_COLOUR,
    "copies": "#8c6d31",
    "host": "#cc79a7",
    "idle": "#dddddd",
}
"""Okabe and Ito's palette (2008), which colour-blind readers can tell apart."""
BAR_WIDTH = 720
LABEL_WIDTH = 200
ROW_HEIGHT = 26


def ranks_svg(profile: TraceProfile) -> str:
    """A bar per rank: its mean step, part by part."""
    return _picture(tuple(_rank_rows(profile)))


def units_svg(units: Sequence[UnitExposure]) -> str:
    """A bar per unit and collective: exposed and hidden work."""
    return _picture(tuple(_unit_rows(units)))


def _picture(rows: Sequence[str]) -> str:
    height = ROW_HEIGHT * len(rows)
    width = LABEL_WIDTH + BAR_WIDTH + 90
    head = f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {height}' width='{width}' role='img'>"
    placed = "".join(f"<g transform='translate(0 {ROW_HEIGHT * index})'>{row}</g>" for index, row in enumerate(rows))
    return f"{head}<g font-family='system-ui, sans-serif' font-size='13' fill='#222'>{placed}</g></svg>\n"


def _rank_rows(profile: TraceProfile) -> Iterator[str]:
    longest = max(rank.split.step_s for rank in profile.ranks) or 1.0
    for rank in profile.ranks:
        bars, left = [], float(LABEL_WIDTH)
        for part in rank.split.parts:
            width = BAR_WIDTH * part.duration_s / longest
            tip = f"{part.name}: {format_seconds(part.duration_s)}, {format_percent(part.share_fraction)}"
            bars.append(_bar(left, width, PART_COLOURS[part.name], tip))
            left += width
        yield _row(f"rank {rank.rank}", "".join(bars), left, format_seconds(rank.split.step_s))


def _unit_rows(units: Sequence[UnitExposure]) -> Iterator[str]:
    longest = max(unit.work_s for unit in units) or 1.0
    for unit in units:
        direction = "backward" if unit.is_backward else "forward"
        exposed = BAR_WIDTH * unit.exposed_s / longest
        hidden = BAR_WIDTH * unit.work_s / longest - exposed
        tip = f"{unit.kind}, {direction}: {format_percent(unit.exposed_fraction)} exposed"
        bars = _bar(LABEL_WIDTH, exposed, EXPOSED_COLOUR, tip) + _bar(LABEL_WIDTH + exposed, hidden, HIDDEN_COLOUR, tip)
        label = f"{unit.unit} {unit.kind} {direction[:3]}"
        yield _row(label, bars, LABEL_WIDTH + exposed + hidden, format_seconds(unit.work_s))


def _bar(left: float, width: float, colour: str, tip: str) -> str:
    return (
        f"<rect x='{left:.1f}' y='3' width='{max(width, 0):.1f}' height='18' fill='{colour}'>"
        f"<title>{escape(tip)}</title></rect>"
    )


def _row(label: str, bars: str, end: float, amount: str) -> str:
    return f"<text x='0' y='17'>{escape(label[:30])}</text>{bars}<text x='{end + 6:.1f}' y='17'>{escape(amount)}</text>"

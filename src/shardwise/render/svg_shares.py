"""Measured steps and collectives as bars: what each rank's device did, what of each unit's collectives is exposed."""

from collections.abc import Sequence
from html import escape

from shardwise.measure.profile_records import TraceProfile, UnitExposure
from shardwise.render.svg_canvas import on_white, stacked
from shardwise.units import Seconds, format_percent, format_seconds

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
BAR_WIDTH = 720.0
LABEL_WIDTH = 200.0
ROW_HEIGHT = 26
BAR_HEIGHT = 18


def ranks_svg(profile: TraceProfile) -> str:
    """A bar per rank: its mean step, part by part."""
    longest = max(rank.split.step_s for rank in profile.ranks) or 1.0
    rows: list[str] = []
    for rank in profile.ranks:
        bars = [
            (
                BAR_WIDTH * part.duration_s / longest,
                PART_COLOURS[part.name],
                f"{part.name}: {format_seconds(part.duration_s)}, {format_percent(part.share_fraction)}",
            )
            for part in rank.split.parts
        ]
        rows.append(_row(f"rank {rank.rank}", bars, rank.split.step_s, index=len(rows)))
    return _picture(rows, label="the mean step of every rank, part by part")


def units_svg(units: Sequence[UnitExposure]) -> str:
    """A bar per unit and collective: exposed and hidden work."""
    longest = max(unit.work_s for unit in units) or 1.0
    rows: list[str] = []
    for unit in units:
        direction = "backward" if unit.is_backward else "forward"
        exposed = BAR_WIDTH * unit.exposed_s / longest
        hidden = BAR_WIDTH * unit.work_s / longest - exposed
        tip = f"{unit.kind}, {direction}: {format_percent(unit.exposed_fraction)} exposed"
        bars = [(exposed, EXPOSED_COLOUR, tip), (hidden, HIDDEN_COLOUR, tip)]
        rows.append(_row(f"{unit.unit} {unit.kind} {direction[:3]}", bars, unit.work_s, index=len(rows)))
    return _picture(rows, label="collectives of every unit, exposed and hidden")


def _picture(rows: Sequence[str], *, label: str) -> str:
    return on_white(rows, size=(LABEL_WIDTH + BAR_WIDTH + 90, ROW_HEIGHT * len(rows)), label=label)


def _row(label: str, bars: Sequence[tuple[float, str, str]], duration_s: Seconds, *, index: int) -> str:
    y = ROW_HEIGHT * index
    end = LABEL_WIDTH + sum(width for width, _, _ in bars) + 6
    drawn = "".join(stacked(bars, x=LABEL_WIDTH, y=y + 3, height=BAR_HEIGHT))
    return (
        f"<text x='0' y='{y + 17}'>{escape(label[:30])}</text>{drawn}"
        f"<text x='{end:.1f}' y='{y + 17}'>{escape(format_seconds(duration_s))}</text>"
    )

"""A profile of measured traces as one HTML file that works offline: a bar per rank, a bar per unit, the report."""

from collections.abc import Iterator, Sequence
from html import escape

from shardwise.measure.profile_records import TraceProfile, UnitExposure
from shardwise.render.terminal import TextStyle
from shardwise.render.text_profile import PART_NAMES, profile_text, profile_title, shown_units, split_values
from shardwise.units import format_percent, format_seconds

PAGE_WIDTH = TextStyle(width=120)
PART_COLOURS = ("#0072b2", "#d55e00", "#8c6d31", "#cc79a7", "#dddddd")
"""Okabe and Ito's palette (2008): compute, exposed communication, copies, host, idle."""
BAR_WIDTH = 720
LABEL_WIDTH = 200
ROW_HEIGHT = 26
PAGE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Measured step</title>
<style>
body {{ font-family: system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; color: #222; }}
svg {{ max-width: 100%; height: auto; }}
pre {{ overflow-x: auto; background: #f6f6f6; padding: 1rem; }}
.key span {{ display: inline-block; width: .8em; height: .8em; margin: 0 .3em 0 1em; }}
</style>
</head>
<body>
<h1>Where the step went</h1>
<p>{title}; measured, one mean step.</p>
<p class="key">{key}</p>
<figure>
{ranks}</figure>
{units}
<pre>{report}</pre>
</body>
</html>
"""
UNITS = """<h2>Collectives of FSDP units: work, and what of it is exposed</h2>
<figure>
{picture}</figure>"""


def profile_html(profile: TraceProfile) -> str:
    """The whole page."""
    key = "".join(
        f'<span style="background:{colour}"></span>{name}'
        for name, colour in zip(PART_NAMES, PART_COLOURS, strict=True)
    )
    units = shown_units(profile.units, has_units=False)
    return PAGE.format(
        title=escape(profile_title(profile)),
        key=key,
        ranks=_picture(tuple(_rank_rows(profile))),
        units=UNITS.format(picture=_picture(tuple(_unit_rows(units)))) if units else "",
        report=escape(profile_text(profile, has_units=True, style=PAGE_WIDTH)),
    )


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
        for part, name, colour in zip(split_values(rank.split), PART_NAMES, PART_COLOURS, strict=True):
            width = BAR_WIDTH * part / longest
            tip = f"{name}: {format_seconds(part)}, {format_percent(part / rank.split.step_s)}"
            bars.append(_bar(left, width, colour, tip))
            left += width
        yield _row(f"rank {rank.rank}", "".join(bars), left, format_seconds(rank.split.step_s))


def _unit_rows(units: Sequence[UnitExposure]) -> Iterator[str]:
    longest = max(unit.work_s for unit in units) or 1.0
    for unit in units:
        direction = "backward" if unit.is_backward else "forward"
        exposed = BAR_WIDTH * unit.exposed_s / longest
        hidden = BAR_WIDTH * unit.work_s / longest - exposed
        tip = f"{unit.kind}, {direction}: {format_percent(unit.exposed_fraction)} exposed"
        bars = _bar(LABEL_WIDTH, exposed, PART_COLOURS[1], tip) + _bar(LABEL_WIDTH + exposed, hidden, "#56b4e9", tip)
        label = f"{unit.unit} {unit.kind} {direction[:3]}"
        yield _row(label, bars, LABEL_WIDTH + exposed + hidden, format_seconds(unit.work_s))


def _bar(left: float, width: float, colour: str, tip: str) -> str:
    return (
        f"<rect x='{left:.1f}' y='3' width='{max(width, 0):.1f}' height='18' fill='{colour}'>"
        f"<title>{escape(tip)}</title></rect>"
    )


def _row(label: str, bars: str, end: float, amount: str) -> str:
    return f"<text x='0' y='17'>{escape(label[:30])}</text>{bars}<text x='{end + 6:.1f}' y='17'>{escape(amount)}</text>"

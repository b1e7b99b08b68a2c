"""A profile of measured traces as one HTML file that works offline: a bar per rank, a bar per unit, the report."""

from html import escape

from shardwise.measure.profile_records import TraceProfile
from shardwise.render.svg_shares import PART_COLOURS, ranks_svg, units_svg
from shardwise.render.terminal import TextStyle
from shardwise.render.text_profile import profile_text, profile_title, shown_units

PAGE_WIDTH = TextStyle(width=120)
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
    key = "".join(f'<span style="background:{colour}"></span>{name}' for name, colour in PART_COLOURS.items())
    units = shown_units(profile.units, has_units=False)
    return PAGE.format(
        title=escape(profile_title(profile)),
        key=key,
        ranks=ranks_svg(profile),
        units=UNITS.format(picture=units_svg(units)) if units else "",
        report=escape(profile_text(profile, has_units=True, style=PAGE_WIDTH)),
    )

"""Measured traces and memory snapshots as one HTML file that works offline: pictures, and the report."""

from collections.abc import Sequence
from html import escape

from shardwise.measure.memory_profile import MemoryProfile
from shardwise.measure.profile_records import TraceProfile
from shardwise.reconcile.planned_profile import PlannedProfile
from shardwise.render.svg_memory_profile import memory_history_svg
from shardwise.render.svg_shares import PART_COLOURS, ranks_svg, units_svg
from shardwise.render.terminal import TextStyle
from shardwise.render.text_memory_profile import memory_profile_text, memory_profile_title
from shardwise.render.text_profile import profile_text, profile_title, shown_units

PAGE_WIDTH = TextStyle(width=120)
PAGE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Measured</title>
<style>
body {{ font-family: system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; color: #222; }}
svg {{ max-width: 100%; height: auto; }}
pre {{ overflow-x: auto; background: #f6f6f6; padding: 1rem; }}
.key span {{ display: inline-block; width: .8em; height: .8em; margin: 0 .3em 0 1em; }}
</style>
</head>
<body>
{sections}
</body>
</html>
"""
STEP = """<h1>Where the step went</h1>
<p>{title}; measured, one mean step.</p>
<p class="key">{key}</p>
<figure>
{ranks}</figure>
{units}
<pre>{report}</pre>"""
UNITS = """<h2>Collectives of FSDP units: work, and what of it is exposed</h2>
<figure>
{picture}</figure>"""
MEMORY = """<h1>Where the memory went</h1>
{pictures}
<pre>{report}</pre>"""
HISTORY = """<p>{title}; recorded by the allocator, event after event.</p>
<figure>
{picture}</figure>"""


def profile_html(
    profile: TraceProfile | None, memory: Sequence[MemoryProfile] = (), planned: PlannedProfile | None = None
) -> str:
    """The whole page."""
    sections = [_step_section(profile, planned)] if profile is not None else []
    if memory:
        sections.append(_memory_section(memory))
    return PAGE.format(sections="\n".join(sections))


def _step_section(profile: TraceProfile, planned: PlannedProfile | None) -> str:
    key = "".join(f'<span style="background:{colour}"></span>{name}' for name, colour in PART_COLOURS.items())
    units = shown_units(profile.units, has_units=False)
    return STEP.format(
        title=escape(profile_title(profile)),
        key=key,
        ranks=ranks_svg(profile),
        units=UNITS.format(picture=units_svg(units)) if units else "",
        report=escape(profile_text(profile, planned, has_units=True, style=PAGE_WIDTH)),
    )


def _memory_section(memory: Sequence[MemoryProfile]) -> str:
    pictures = (
        HISTORY.format(title=escape(memory_profile_title(one)), picture=memory_history_svg(one)) for one in memory
    )
    return MEMORY.format(pictures="\n".join(pictures), report=escape(memory_profile_text(memory, style=PAGE_WIDTH)))

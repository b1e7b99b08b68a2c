"""Measured traces and memory snapshots as one HTML file that works offline: pictures, and the report."""

from collections.abc import Iterator, Sequence

from shardwise.measure.memory_profile import MemoryProfile
from shardwise.measure.profile_records import TraceProfile
from shardwise.reconcile.planned_profile import PlannedProfile
from shardwise.render.html_page import element, figure, page_html
from shardwise.render.svg_memory_profile import memory_history_svg
from shardwise.render.svg_shares import PART_COLOURS, ranks_svg, units_svg
from shardwise.render.terminal import TextStyle
from shardwise.render.text_memory_profile import memory_profile_text, memory_profile_title
from shardwise.render.text_profile import profile_text, profile_title, shown_units

PAGE_WIDTH = TextStyle(width=120)
KEY = ".key span { display: inline-block; width: .8em; height: .8em; margin: 0 .3em 0 1em; }\n"


def profile_html(
    profile: TraceProfile | None, memory: Sequence[MemoryProfile] = (), planned: PlannedProfile | None = None
) -> str:
    """The whole page."""
    step = _step_section(profile, planned) if profile is not None else ()
    recorded = _memory_section(memory) if memory else ()
    return page_html("Measured", (*step, *recorded), style=KEY)


def _step_section(profile: TraceProfile, planned: PlannedProfile | None) -> Iterator[str]:
    yield element("h1", "Where the step went")
    yield element("p", f"{profile_title(profile)}; measured, one mean step.")
    key = "".join(f'<span style="background:{colour}"></span>{name}' for name, colour in PART_COLOURS.items())
    yield f'<p class="key">{key}</p>'
    yield figure(ranks_svg(profile))
    units = shown_units(profile.units, has_units=False)
    if units:
        yield element("h2", "Collectives of FSDP units: work, and what of it is exposed")
        yield figure(units_svg(units))
    yield element("pre", profile_text(profile, planned, has_units=True, style=PAGE_WIDTH))


def _memory_section(memory: Sequence[MemoryProfile]) -> Iterator[str]:
    yield element("h1", "Where the memory went")
    for one in memory:
        yield element("p", f"{memory_profile_title(one)}; recorded by the allocator, event after event.")
        yield figure(memory_history_svg(one))
    yield element("pre", memory_profile_text(memory, style=PAGE_WIDTH))

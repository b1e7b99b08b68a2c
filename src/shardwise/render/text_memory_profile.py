"""A recorded memory history as text: the peak and each phase by component, and the code behind the peak."""

from collections.abc import Iterator, Mapping, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from shardwise.measure.memory_origin import DEFINITIONS, BlockComponent
from shardwise.measure.memory_profile import MemoryMoment, MemoryProfile
from shardwise.render.terminal import PLAIN, TextStyle, page_text, plain_table
from shardwise.units import format_bytes, format_percent

NOTHING = "-"
MOST_LINES = 15
"""Places in the code that are shown."""


def memory_profile_text(profiles: Sequence[MemoryProfile], *, style: TextStyle = PLAIN) -> str:
    """Everything ``shardwise profile`` prints of memory snapshots."""
    return page_text(memory_profile_parts(profiles), style=style)


def memory_profile_parts(profiles: Sequence[MemoryProfile]) -> Iterator[RenderableType]:
    """The parts of the page, device by device."""
    for profile in profiles:
        yield Text(memory_profile_title(profile), style="bold")
        yield Text()
        yield phase_table(profile)
        yield Text()
        yield code_table(profile)
        for refused in profile.refused:
            free = "" if refused.free_bytes is None else f", {format_bytes(refused.free_bytes)} free on the device"
            yield Text(f"out of memory: {format_bytes(refused.num_bytes)} was asked for{free}", style="red")
        yield Text()
    words = Table.grid(padding=(0, 2))
    words.add_column(style="bold")
    words.add_column()
    for word, meaning in DEFINITIONS:
        words.add_row(spoken(word), meaning)
    yield words


def memory_profile_title(profile: MemoryProfile) -> str:
    """Which file and device, and how high it went."""
    return (
        f"{profile.path.name}, device {profile.device_index}: {format_bytes(profile.peak.num_bytes)} allocated at the "
        f"peak, in {profile.peak.phase}; {format_bytes(profile.peak_reserved_bytes)} reserved, "
        f"{format_bytes(profile.slack_bytes)} more than allocated"
    )


def phase_table(profile: MemoryProfile) -> Table:
    """What is held at the highest moment of each phase."""
    table = plain_table(title="Held at the highest moment of each phase", padding=(0, 1, 0, 0))
    table.add_column("component")
    for moment in profile.phase_peaks:
        table.add_column(moment.phase, justify="right", no_wrap=True)
    table.add_column("of the peak", justify="right", no_wrap=True)
    for name, _ in _names(profile):
        held = (component_bytes(moment).get(name) for moment in profile.phase_peaks)
        amounts = (NOTHING if amount is None else format_bytes(amount) for amount in held)
        table.add_row(spoken(name), *amounts, format_percent(profile.peak_fraction(name)))
    table.add_section()
    table.add_row("all", *(format_bytes(moment.num_bytes) for moment in profile.phase_peaks), "")
    return table


def _names(profile: MemoryProfile) -> list[tuple[BlockComponent, int]]:
    """Components that occur, by their largest amount."""
    largest: dict[BlockComponent, int] = {}
    for moment in profile.phase_peaks:
        for name, amount in moment.components:
            largest[name] = max(largest.get(name, 0), amount)
    return sorted(largest.items(), key=lambda item: -item[1])


def code_table(profile: MemoryProfile) -> Table:
    """The places in the code that asked for what is held at the peak."""
    table = plain_table(title="Who asked for what is held at the peak")
    table.add_column("code", overflow="fold")
    table.add_column("component")
    table.add_column("blocks", justify="right", no_wrap=True)
    table.add_column("bytes", justify="right", no_wrap=True)
    for share in profile.code[:MOST_LINES]:
        table.add_row(share.label, spoken(share.component), f"{share.num_blocks:,}", format_bytes(share.num_bytes))
    rest = profile.code[MOST_LINES:]
    if rest:
        num_blocks, num_bytes = sum(share.num_blocks for share in rest), sum(share.num_bytes for share in rest)
        table.add_row(f"{len(rest)} more places", "", f"{num_blocks:,}", format_bytes(num_bytes))
    return table


def component_bytes(moment: MemoryMoment) -> Mapping[BlockComponent, int]:
    """What is held, by component."""
    return dict(moment.components)


def spoken(name: str) -> str:
    """A component's name as a person says it."""
    return name.replace("_", " ")


def components_line(moment: MemoryMoment) -> str:
    """What is held, largest first, in one line."""
    return ", ".join(f"{spoken(name)} {format_bytes(amount)}" for name, amount in moment.components)

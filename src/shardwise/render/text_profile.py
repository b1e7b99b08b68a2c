"""A profile of measured traces as text: where the step went, its collectives, units, kernels, and what would help."""

from collections.abc import Iterable, Iterator

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from shardwise.explain.knobs import TurnedKnobs
from shardwise.measure.profile_records import CollectiveFamily, TraceProfile, UnitExposure
from shardwise.measure.step_split import DEFINITIONS
from shardwise.reconcile.planned_profile import PlannedProfile
from shardwise.render.terminal import PLAIN, TextStyle, page_text, plain_table
from shardwise.render.utilisation import utilisation_lines
from shardwise.units import format_bytes_per_s, format_flop_per_s, format_percent, format_seconds

NOTHING = "-"
MOST_UNITS = 12
"""Shown unless all are asked for."""
KNOB_INDENT = (0, 0, 0, 4)


def profile_text(
    profile: TraceProfile,
    planned: PlannedProfile | None = None,
    *,
    has_units: bool = False,
    style: TextStyle = PLAIN,
) -> str:
    """Everything ``shardwise profile`` prints."""
    return page_text(profile_parts(profile, planned, has_units=has_units), style=style)


def profile_parts(
    profile: TraceProfile, planned: PlannedProfile | None, *, has_units: bool
) -> Iterator[RenderableType]:
    """The parts of the page, in reading order."""
    yield Text(profile_title(profile), style="bold")
    yield Text()
    yield split_table(profile)
    if len(profile.ranks) > 1:
        yield Text()
        yield rank_table(profile)
    if profile.collectives:
        yield Text()
        yield collective_table(profile.collectives)
    if profile.units:
        yield Text()
        yield unit_table(shown_units(profile.units, has_units=has_units))
    if profile.kernels:
        yield Text()
        yield kernel_table(profile)
    yield Text()
    yield from finding_parts(profile, planned)
    if planned is not None:
        yield Text()
        yield from utilisation_lines(planned.utilisations)
    for warning in (*profile.warnings, *(planned.notes if planned else ())):
        yield Text(f"warning: {warning}", style="yellow")
    yield Text()
    yield definition_table()


def profile_title(profile: TraceProfile) -> str:
    """How much was looked at."""
    of_all = f" of {profile.world_size}" if profile.world_size else ""
    devices = ", ".join(dict.fromkeys(rank.device_name for rank in profile.ranks if rank.device_name))
    steps = f"{profile.ranks[0].num_steps} steps"
    return ", ".join(part for part in (f"{len(profile.ranks)}{of_all} ranks", steps, devices) if part)


def split_table(profile: TraceProfile) -> Table:
    """A mean step of a mean rank, part by part."""
    table = plain_table(title="Where a step goes")
    table.add_column("part")
    for heading in ("time", "share"):
        table.add_column(heading, justify="right", no_wrap=True)
    split = profile.split
    for part in split.parts:
        table.add_row(part.name, format_seconds(part.duration_s), format_percent(part.share_fraction))
    table.add_section()
    table.add_row("step", format_seconds(split.step_s), "")
    if split.overlap_fraction is not None:
        table.add_row("communication", format_seconds(split.communication_s), "")
        table.add_row("overlap", format_seconds(split.overlapped_s), format_percent(split.overlap_fraction))
    return table


def rank_table(profile: TraceProfile) -> Table:
    """A mean step of every rank, as shares."""
    table = plain_table(title="Rank by rank", padding=(0, 1, 0, 0))
    table.add_column("rank")
    for heading in ("step", "compute", "exposed", "copies", "host", "idle", "wait"):
        table.add_column(heading, justify="right", no_wrap=True)
    for rank in profile.ranks:
        shares = (format_percent(part.share_fraction) for part in rank.split.parts)
        wait = NOTHING if rank.wait_s is None else format_seconds(rank.wait_s)
        table.add_row(str(rank.rank), format_seconds(rank.split.step_s), *shares, wait)
    return table


def collective_table(families: Iterable[CollectiveFamily]) -> Table:
    """A mean step of a mean rank, by kind and axis."""
    table = plain_table(title="Collectives of one step", padding=(0, 1, 0, 0))
    table.add_column("what")
    table.add_column("over")
    for heading in ("work", "wait", "transfer", "exposed", "bus"):
        table.add_column(heading, justify="right", no_wrap=True)
    for family in families:
        over = family.axis or "unnamed"
        table.add_row(
            f"{family.num_calls:g} {family.kind or 'unknown'}",
            over if family.group_size is None else f"{over}={family.group_size}",
            format_seconds(family.work_s),
            *(NOTHING if part is None else format_seconds(part) for part in (family.wait_s, family.transfer_s)),
            format_seconds(family.exposed_s),
            _bandwidth(family),
        )
    return table


def _bandwidth(family: CollectiveFamily) -> str:
    rate = family.bus_bandwidth_bytes_per_s
    if rate is None:
        return NOTHING
    return format_bytes_per_s(rate) if family.transfer_s is not None else f">= {format_bytes_per_s(rate)}"


def shown_units(units: tuple[UnitExposure, ...], *, has_units: bool) -> tuple[UnitExposure, ...]:
    """Units that expose most, unless all are asked for."""
    ranked = tuple(sorted(units, key=lambda unit: -unit.exposed_s))
    return ranked if has_units else ranked[:MOST_UNITS]


def unit_table(units: Iterable[UnitExposure]) -> Table:
    """The collectives of FSDP units, the most exposed first."""
    table = plain_table(title="FSDP units, the most exposed first")
    table.add_column("unit")
    table.add_column("what")
    table.add_column("in")
    for heading in ("calls", "work", "exposed", "share"):
        table.add_column(heading, justify="right", no_wrap=True)
    for unit in units:
        table.add_row(
            unit.unit,
            unit.kind or "unknown",
            "backward" if unit.is_backward else "forward",
            f"{unit.num_calls:g}",
            format_seconds(unit.work_s),
            format_seconds(unit.exposed_s),
            format_percent(unit.exposed_fraction),
        )
    return table


def kernel_table(profile: TraceProfile) -> Table:
    """Kernels by family."""
    table = plain_table(title="Kernels of one step")
    table.add_column("family")
    for heading in ("kernels", "time", "share", "rate", "of peak"):
        table.add_column(heading, justify="right", no_wrap=True)
    for share in profile.kernels:
        table.add_row(
            share.family.replace("_", " "),
            f"{share.num_kernels:,.0f}",
            format_seconds(share.duration_s),
            format_percent(share.share_fraction),
            NOTHING if share.flop_per_s is None else format_flop_per_s(share.flop_per_s),
            NOTHING if share.peak_fraction is None else format_percent(share.peak_fraction),
        )
    return table


def finding_parts(profile: TraceProfile, planned: PlannedProfile | None) -> Iterator[RenderableType]:
    """What costs time, the knobs that would help, and what turning them gains."""
    if not profile.findings:
        yield Text("Nothing stands out: no cause of more than 1 % of the step.")
        return
    yield Text("What would help", style="bold")
    turned = planned.knobs if planned else tuple(None for _ in profile.findings)
    for finding, knobs in zip(profile.findings, turned, strict=True):
        gain = f"at most {format_seconds(finding.gain_s)}, {format_percent(finding.gain_fraction)}"
        yield Text(f"- {finding.sentence}: {finding.advice} ({gain} of the step)")
        if knobs is not None:
            yield from _knob_lines(knobs)
    if planned is None:
        yield Text("These gains are bounds from the trace alone; with --plan PLAN the knobs are turned and predicted.")


def _knob_lines(knobs: TurnedKnobs) -> Iterator[Padding]:
    """What was predicted of each knob."""
    for gain in knobs.gains:
        said = f"{gain.edit}: predicted gain {format_seconds(gain.gain_s)}, {format_percent(gain.gain_fraction)}"
        yield Padding(Text(f"{said} of the step ({gain.cost})"), KNOB_INDENT)
    if knobs.useless:
        yield Padding(Text(f"predicted to gain nothing: {', '.join(knobs.useless)}"), KNOB_INDENT)
    if knobs.too_large:
        yield Padding(Text(f"predicted not to fit: {', '.join(knobs.too_large)}"), KNOB_INDENT)


def definition_table() -> Table:
    """The words of the report."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold")
    table.add_column()
    for word, meaning in DEFINITIONS:
        table.add_row(word, meaning)
    return table

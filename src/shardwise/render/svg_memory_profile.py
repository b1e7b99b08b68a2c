"""A recorded memory history as a picture: what is held, component upon component, request after request."""

from collections.abc import Iterator, Sequence
from html import escape

from shardwise.measure.memory_origin import BEFORE_RECORDING, BlockComponent
from shardwise.measure.memory_profile import MemoryMoment, MemoryProfile
from shardwise.render.svg_canvas import colour_key, key_height, on_white
from shardwise.render.svg_memory import COMPONENT_COLOURS
from shardwise.render.text_memory_profile import component_bytes, components_line, spoken
from shardwise.units import format_bytes

COLOURS: dict[BlockComponent, str] = {BEFORE_RECORDING: "#444444"} | COMPONENT_COLOURS
WIDTH = 900.0
HEIGHT = 320.0
TOP = 24.0
KEY_COLUMNS = 4


def memory_history_svg(profile: MemoryProfile) -> str:
    """The picture as one SVG element; time runs by the allocator's events, not by seconds."""
    names = [name for name in COLOURS if any(name in component_bytes(moment) for moment in profile.samples)]
    parts = (
        f"<text x='0' y='14'>{escape(format_bytes(profile.peak.num_bytes))} at the peak</text>",
        *_layers(profile, names),
        *_phase_marks(profile.samples),
        *colour_key(
            [(spoken(name), COLOURS[name]) for name in names],
            top=TOP + HEIGHT + 32,
            width=WIDTH,
            num_columns=KEY_COLUMNS,
        ),
    )
    return on_white(
        parts,
        size=(WIDTH, TOP + HEIGHT + 40 + key_height(len(names), num_columns=KEY_COLUMNS)),
        label=f"peak {format_bytes(profile.peak.num_bytes)}: {components_line(profile.peak)}",
    )


def _layers(profile: MemoryProfile, names: Sequence[BlockComponent]) -> Iterator[str]:
    """One band per component, each upon the ones before."""
    held = [component_bytes(moment) for moment in profile.samples]
    floor = [0] * len(held)
    for name in names:
        ceiling = [below + amounts.get(name, 0) for below, amounts in zip(floor, held, strict=True)]
        there = [_point(index, amount, profile) for index, amount in enumerate(ceiling)]
        back = [_point(index, amount, profile) for index, amount in reversed(list(enumerate(floor)))]
        outline = " ".join([*there, *back])
        yield f"<polygon points='{outline}' fill='{COLOURS[name]}'><title>{spoken(name)}</title></polygon>"
        floor = ceiling


def _point(index: int, amount: int, profile: MemoryProfile) -> str:
    across = WIDTH * index / max(1, len(profile.samples) - 1)
    up = HEIGHT * amount / max(1, profile.peak.num_bytes)
    return f"{across:.1f},{TOP + HEIGHT - up:.1f}"


def _phase_marks(samples: Sequence[MemoryMoment]) -> Iterator[str]:
    """The name of every phase that is long enough to be written under its stretch."""
    begin = 0
    for index in range(1, len(samples) + 1):
        if index < len(samples) and samples[index].phase == samples[begin].phase:
            continue
        left, right = (WIDTH * place / max(1, len(samples) - 1) for place in (begin, index - 1))
        if right - left > 8 * len(samples[begin].phase):
            middle, below = (left + right) / 2, TOP + HEIGHT + 16
            yield f"<text x='{middle:.0f}' y='{below:.0f}' text-anchor='middle'>{samples[begin].phase}</text>"
        yield f"<line x1='{left:.1f}' x2='{left:.1f}' y1='{TOP:.0f}' y2='{TOP + HEIGHT + 4:.0f}' stroke='#ccc'/>"
        begin = index

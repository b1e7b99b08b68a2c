"""Device memory as an SVG picture: one stacked bar per pipeline stage against the capacity line. No scripts."""

from collections.abc import Iterator
from dataclasses import dataclass
from xml.sax.saxutils import escape

from shardwise.ledger import MEMORY_COMPONENTS, MemoryComponent
from shardwise.prediction import MemoryPrediction, StageMemory
from shardwise.render.svg_canvas import colour_key, key_height, on_white, stacked
from shardwise.units import format_gib

COMPONENT_COLOURS: dict[MemoryComponent, str] = {
    "parameters": "#0072b2",
    "gradients": "#009e73",
    "optimizer": "#cc79a7",
    "activations": "#e69f00",
    "logits": "#d55e00",
    "gathered_parameters": "#56b4e9",
    "communication_buffers": "#f0e442",
    "temporaries": "#8c6d31",
    "framework": "#999999",
}
"""Okabe and Ito's palette (2008), which colour-blind readers can tell apart, and a brown for the ninth."""

LABEL_WIDTH = 84.0
BAR_WIDTH = 640.0
AMOUNT_WIDTH = 116.0
BAR_HEIGHT = 22.0
ROW_HEIGHT = 30.0
TOP = 44.0
KEY_COLUMNS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Pixels of an amount of memory."""

    whole_bytes: int
    """The amount that fills the width of a bar."""

    def pixels(self, num_bytes: int) -> float:
        """Width of ``num_bytes``."""
        return BAR_WIDTH * num_bytes / self.whole_bytes


def memory_svg(memory: MemoryPrediction, *, title: str) -> str:
    """The picture as one SVG element, ready for a file or a page."""
    scale = Scale(whole_bytes=max(memory.capacity_bytes, *(stage.device_used_bytes for stage in memory.stages), 1))
    bars_end = TOP + ROW_HEIGHT * len(memory.stages)
    height = bars_end + 16 + key_height(len(COMPONENT_COLOURS), num_columns=KEY_COLUMNS)
    parts = (
        f"<text x='0' y='16' font-weight='bold'>{escape(title)}</text>",
        *(part for row, stage in enumerate(memory.stages) for part in _stage_row(stage, row=row, scale=scale)),
        _capacity_line(memory, scale=scale, bars_end=bars_end),
        *colour_key(
            tuple(COMPONENT_COLOURS.items()), top=bars_end + 16, width=LABEL_WIDTH + BAR_WIDTH, num_columns=KEY_COLUMNS
        ),
    )
    return on_white(
        parts,
        size=(LABEL_WIDTH + BAR_WIDTH + AMOUNT_WIDTH, height),
        label=(
            f"{title}: the fullest GPU needs {format_gib(memory.needed_bytes)} and holds "
            f"{format_gib(memory.worst.device_used_bytes)} with cached blocks"
        ),
    )


def _stage_row(stage: StageMemory, *, row: int, scale: Scale) -> Iterator[str]:
    y = TOP + ROW_HEIGHT * row
    yield f"<text x='0' y='{y + 16:.1f}'>stage {stage.stage}</text>"
    sizes = [(component, stage.component_bytes(component)) for component in MEMORY_COMPONENTS]
    yield from stacked(
        (
            (scale.pixels(num_bytes), COMPONENT_COLOURS[component], f"{component}: {format_gib(num_bytes)}")
            for component, num_bytes in sizes
        ),
        x=LABEL_WIDTH,
        y=y,
        height=BAR_HEIGHT,
    )
    end = LABEL_WIDTH + BAR_WIDTH + 8
    yield f"<text x='{end:.0f}' y='{y + 10:.1f}'>needs {format_gib(stage.needed_bytes)}</text>"
    yield (
        f"<text x='{end:.0f}' y='{y + 24:.1f}' fill='#666' font-size='11'>holds {format_gib(stage.device_used_bytes)}"
        "<title>with the blocks that the allocator keeps for later and gives back before it fails</title></text>"
    )


def _capacity_line(memory: MemoryPrediction, *, scale: Scale, bars_end: float) -> str:
    x = LABEL_WIDTH + scale.pixels(memory.capacity_bytes)
    label = f"device {format_gib(memory.capacity_bytes)}"
    return (
        f"<line x1='{x:.1f}' x2='{x:.1f}' y1='{TOP - 6:.0f}' y2='{bars_end:.0f}' stroke='#c00' stroke-width='2'/>\n"
        f"<text x='{x:.1f}' y='{TOP - 10:.0f}' text-anchor='end' fill='#c00'>{label}</text>"
    )

"""Device memory as an SVG picture: one stacked bar per pipeline stage against the capacity line. No scripts."""

from dataclasses import dataclass
from xml.sax.saxutils import escape

from shardwise.ledger import MEMORY_COMPONENTS, MemoryComponent
from shardwise.prediction import MemoryPrediction, StageMemory
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
AMOUNT_WIDTH = 96.0
BAR_HEIGHT = 22.0
ROW_HEIGHT = 30.0
TOP = 44.0
LEGEND_COLUMNS = 3
LEGEND_ROW_HEIGHT = 20.0
FONT = "font-family='system-ui, sans-serif' font-size='13'"


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
    legend_rows = -(-len(MEMORY_COMPONENTS) // LEGEND_COLUMNS)
    height = bars_end + 16 + LEGEND_ROW_HEIGHT * legend_rows
    width = LABEL_WIDTH + BAR_WIDTH + AMOUNT_WIDTH
    summary = f"{title}: the fullest GPU holds {format_gib(memory.worst.device_used_bytes)}"
    parts = [
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width:.0f} {height:.0f}' width='{width:.0f}' "
        f"role='img' aria-label='{_attribute(summary)}'>",
        f"<rect width='{width:.0f}' height='{height:.0f}' fill='white'/>",
        f"<g {FONT} fill='#222'>",
        f"<text x='0' y='16' font-weight='bold'>{escape(title)}</text>",
        *(_stage_row(stage, row=row, scale=scale) for row, stage in enumerate(memory.stages)),
        _capacity_line(memory, scale=scale, bars_end=bars_end),
        *_legend(top=bars_end + 16),
        "</g>",
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _stage_row(stage: StageMemory, *, row: int, scale: Scale) -> str:
    y = TOP + ROW_HEIGHT * row
    parts = [f"<text x='0' y='{y + 16:.1f}'>stage {stage.stage}</text>"]
    x = LABEL_WIDTH
    for component in MEMORY_COMPONENTS:
        num_bytes = stage.component_bytes(component)
        width = scale.pixels(num_bytes)
        if width > 0:
            parts.append(
                f"<rect x='{x:.1f}' y='{y:.1f}' width='{width:.1f}' height='{BAR_HEIGHT:.0f}' "
                f"fill='{COMPONENT_COLOURS[component]}'><title>{component}: {format_gib(num_bytes)}</title></rect>"
            )
        x += width
    end = LABEL_WIDTH + BAR_WIDTH + 8
    parts.append(f"<text x='{end:.0f}' y='{y + 16:.1f}'>{format_gib(stage.device_used_bytes)}</text>")
    return "\n".join(parts)


def _capacity_line(memory: MemoryPrediction, *, scale: Scale, bars_end: float) -> str:
    x = LABEL_WIDTH + scale.pixels(memory.capacity_bytes)
    label = f"device {format_gib(memory.capacity_bytes)}"
    return (
        f"<line x1='{x:.1f}' x2='{x:.1f}' y1='{TOP - 6:.0f}' y2='{bars_end:.0f}' stroke='#c00' stroke-width='2'/>\n"
        f"<text x='{x:.1f}' y='{TOP - 10:.0f}' text-anchor='end' fill='#c00'>{label}</text>"
    )


def _legend(*, top: float) -> list[str]:
    column_width = (LABEL_WIDTH + BAR_WIDTH) / LEGEND_COLUMNS
    parts = []
    for index, component in enumerate(MEMORY_COMPONENTS):
        x = column_width * (index % LEGEND_COLUMNS)
        y = top + LEGEND_ROW_HEIGHT * (index // LEGEND_COLUMNS)
        parts.append(
            f"<rect x='{x:.0f}' y='{y:.0f}' width='12' height='12' fill='{COMPONENT_COLOURS[component]}'/>"
            f"<text x='{x + 18:.0f}' y='{y + 11:.0f}'>{component}</text>"
        )
    return parts


def _attribute(text: str) -> str:
    return escape(text, {"'": "&#39;"})

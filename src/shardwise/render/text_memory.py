"""Device memory as a table and as a picture: one stacked bar per pipeline stage against the capacity."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from shardwise.ledger import MEMORY_COMPONENTS, MemoryComponent
from shardwise.prediction import MemoryPrediction, StageMemory
from shardwise.render.bars import stacked_bar
from shardwise.render.terminal import plain_table
from shardwise.units import format_gib

BAR_WIDTH = 50
SHORTEST_BAR = 8
AMOUNT_WIDTH = 16
"""The bar's end mark, the amount behind it, and the blanks between."""
MAX_BARS = 16
"""Bars drawn in a text; beyond that the fullest ones, and JSON has them all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentMark:
    """How a component is drawn: a letter that survives a pipe, and a colour for terminals."""

    letter: str
    colour: str
    meaning: str


COMPONENT_MARKS: dict[MemoryComponent, ComponentMark] = {
    "parameters": ComponentMark(letter="P", colour="blue", meaning="the rank's own weights"),
    "gradients": ComponentMark(letter="G", colour="green", meaning="gradients until they are used"),
    "optimizer": ComponentMark(letter="O", colour="magenta", meaning="optimizer states and master weights"),
    "activations": ComponentMark(letter="A", colour="yellow", meaning="saved for backward, in flight"),
    "logits": ComponentMark(letter="L", colour="red", meaning="logits and cross-entropy"),
    "gathered_parameters": ComponentMark(letter="W", colour="cyan", meaning="16-bit copies, gathered weights"),
    "communication_buffers": ComponentMark(letter="C", colour="bright_blue", meaning="buckets and NCCL buffers"),
    "temporaries": ComponentMark(letter="T", colour="bright_yellow", meaning="workspaces of running kernels"),
    "framework": ComponentMark(letter="F", colour="white", meaning="context, libraries, fragmentation"),
}


def components_table(stage: StageMemory) -> Table:
    """The nine components at the peak of one stage, with the sum they explain."""
    table = plain_table()
    table.add_column("")
    table.add_column("component")
    table.add_column("at the peak", justify="right")
    table.add_column("what it is")
    for component in MEMORY_COMPONENTS:
        mark = COMPONENT_MARKS[component]
        amount = format_gib(stage.component_bytes(component))
        table.add_row(Text(mark.letter, style=mark.colour), component, amount, mark.meaning)
    table.add_section()
    table.add_row("", "device used", format_gib(stage.device_used_bytes), "the sum: what nvidia-smi shows")
    return table


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePicture:
    """The picture of a prediction, drawn as wide as the text it stands in."""

    memory: MemoryPrediction

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The picture for one medium."""
        yield _picture_text(self.memory, width=options.max_width)


def stage_picture(memory: MemoryPrediction) -> StagePicture:
    """One bar per stage on one scale; ``|`` is where the device ends."""
    return StagePicture(memory=memory)


def _picture_text(memory: MemoryPrediction, *, width: int) -> Text:
    runs = shown_runs(memory.stages)
    longest = max(run.stage.device_used_bytes for run in runs)
    label_width = max(len(run.label) for run in runs)
    bar_width = max(SHORTEST_BAR, min(BAR_WIDTH, width - label_width - AMOUNT_WIDTH))
    picture = Text()
    for run in runs:
        picture.append(f"{run.label:<{label_width}} ")
        picture.append_text(_bar_text(run.stage, memory.capacity_bytes, longest, bar_width))
        picture.append(f" {format_gib(run.stage.device_used_bytes):>12}\n")
    hidden = len(memory.stages) - sum(run.num_stages for run in runs)
    if hidden:
        picture.append(f"and {hidden} stages that hold less; --json has them all\n")
    picture.rstrip()
    return picture


def picture_legend() -> Text:
    """What the letters of the picture stand for, where no table beside it says so."""
    names = ", ".join(f"{mark.letter} {component}" for component, mark in COMPONENT_MARKS.items())
    return Text(f"({names}; | the device's end)", style="dim")


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRun:
    """Consecutive stages that hold the same."""

    stage: StageMemory
    num_stages: int

    @property
    def label(self) -> str:
        """``stage 3``, or ``stage 3-6`` for several."""
        first = self.stage.stage
        return f"stage {first}" if self.num_stages == 1 else f"stage {first}-{first + self.num_stages - 1}"


def shown_runs(stages: Sequence[StageMemory]) -> tuple[StageRun, ...]:
    """Stages with equal ones joined, in pipeline order; of a long and uneven pipeline the fullest."""
    runs = [
        StageRun(stage=held[0], num_stages=len(held))
        for held in (list(group) for _, group in groupby(stages, key=lambda stage: stage.components))
    ]
    fullest = sorted(runs, key=lambda run: -run.stage.device_used_bytes)[:MAX_BARS]
    return tuple(sorted(fullest, key=lambda run: run.stage.stage))


def _bar_text(stage: StageMemory, capacity: int, longest: int, width: int) -> Text:
    parts = [stage.component_bytes(component) for component in MEMORY_COMPONENTS]
    bar = stacked_bar(parts, capacity=capacity, longest=longest, width=width)
    marks = [
        COMPONENT_MARKS[component]
        for component, cells in zip(MEMORY_COMPONENTS, bar.cells, strict=True)
        for _ in range(cells)
    ]
    text = Text()
    for cell in range(width):
        if cell == bar.capacity_cell:
            text.append("|", style="bold red")
        if cell < len(marks):
            text.append(marks[cell].letter, style=f"{marks[cell].colour} reverse")
        else:
            text.append("." if cell < bar.capacity_cell else " ", style="dim")
    text.append("|" if bar.capacity_cell == width else ">" if bar.is_cut else " ", style="bold red")
    return text

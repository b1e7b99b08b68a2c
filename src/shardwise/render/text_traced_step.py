"""A traced step as text: memory per phase, collectives, and FLOP per operator of every rank kind."""

from collections.abc import Iterator

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from shardwise.ledger import MEMORY_COMPONENTS
from shardwise.measure.traced_step import TracedStage, TracedStep
from shardwise.plan import Plan
from shardwise.render.names import cluster_text, layout_text, model_text
from shardwise.render.terminal import PLAIN, TextStyle, page_text, plain_table
from shardwise.units import format_bytes, format_count, format_gb, format_gib, format_percent

MAX_ROWS = 14
"""Rows of a table of calls or operators; JSON has them all."""


def traced_step_text(plan: Plan, traced: TracedStep, *, module: str | None, style: TextStyle = PLAIN) -> str:
    """Everything ``shardwise trace`` prints."""
    return page_text(_parts(plan, traced, module), style=style)


def _parts(plan: Plan, traced: TracedStep, module: str | None) -> Iterator[RenderableType]:
    header = Table.grid(padding=(0, 2))
    header.add_row("model", module or model_text(plan.model))
    header.add_row("cluster", cluster_text(plan.cluster))
    header.add_row("layout", layout_text(plan.layout))
    header.add_row("traced with", f"torch {traced.torch_version}, fake tensors, no device")
    yield header
    for stage in traced.stages:
        yield from _stage_parts(stage, has_pipeline=plan.layout.pp > 1)
    yield Text()
    yield Text("Per rank and optimizer step. One call: what a gather makes, what a reduce-scatter takes.")
    for note in traced.notes:
        yield Text(f"note: {note}", style="yellow")


def _stage_parts(stage: TracedStage, *, has_pipeline: bool) -> Iterator[RenderableType]:
    peak = stage.peak
    where = f"Stage {stage.stage}: " if has_pipeline else ""
    yield Text()
    yield Text(f"{where}peak allocated {format_gib(peak.allocated_bytes)} in {peak.phase} ({peak.place})", style="bold")
    yield Text(
        f"{stage.num_traced_blocks} of {stage.num_blocks} blocks and {stage.num_traced_microbatches} of "
        f"{stage.num_microbatches} micro-batches were run; the others are alike"
    )
    yield Text()
    yield _memory_table(stage)
    if stage.collectives:
        yield Text()
        yield _collectives_table(stage)
    if stage.operators:
        yield Text()
        yield _operators_table(stage)


def _memory_table(stage: TracedStage) -> Table:
    """Components down, phases across."""
    table = plain_table(title="Memory at the fullest moment of each phase")
    table.add_column("component")
    for memory in stage.phases:
        table.add_column(memory.phase, justify="right", no_wrap=True)
    by_phase = [dict(memory.components) for memory in stage.phases]
    for name in MEMORY_COMPONENTS:
        if any(name in held for held in by_phase):
            table.add_row(name, *(format_gib(held.get(name, 0)) for held in by_phase))
    table.add_section()
    table.add_row("allocated", *(format_gib(memory.allocated_bytes) for memory in stage.phases))
    return table


def _collectives_table(stage: TracedStage) -> Table:
    table = plain_table(title="Collectives")
    for heading in ("call", "unit", "phase"):
        table.add_column(heading, no_wrap=True)
    for heading in ("one", "calls", "all"):
        table.add_column(heading, justify="right", no_wrap=True)
    for call in stage.collectives[:MAX_ROWS]:
        sizes = (format_bytes(call.num_bytes), f"{call.count:,}", format_gb(call.total_bytes))
        ranks = f"{call.kind} {call.axis} {call.group_size:,}"
        table.add_row(ranks, call.unit.removeprefix("model."), call.phase, *sizes)
    return table


def _operators_table(stage: TracedStage) -> Table:
    table = plain_table(title=f"FLOP: {format_count(stage.flop)}")
    table.add_column("operator")
    table.add_column("phase")
    table.add_column("FLOP", justify="right")
    table.add_column("share", justify="right")
    for operator in stage.operators[:MAX_ROWS]:
        share = format_percent(stage.flop_share_fraction(operator))
        table.add_row(operator.operator, operator.phase, format_count(operator.flop), share)
    return table

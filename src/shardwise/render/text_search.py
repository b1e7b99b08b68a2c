"""A search as text: the ranked layouts, why each lost, what the rules excluded; or what came closest to fitting."""

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from shardwise.plan import Plan
from shardwise.prediction import MemoryPrediction, Prediction
from shardwise.render.answer_words import change_words
from shardwise.render.front_picture import search_front
from shardwise.render.names import (
    cluster_text,
    degrees_text,
    engine_text,
    gib_number,
    layout_text,
    model_text,
    question_text,
    recompute_text,
)
from shardwise.render.terminal import PLAIN, TextStyle, page_text, plain_table
from shardwise.render.text_front import front_lines
from shardwise.render.text_memory import picture_legend, stage_picture
from shardwise.render.text_prediction import assumption_parts, cost_text
from shardwise.render.text_sweep import target_table
from shardwise.search.records import ClosestPlan, MissedTargets, RankedPlan, Relief, SearchResult, SearchSpace
from shardwise.search.simplicity import variant_words
from shardwise.search.what_if import Sensitivity
from shardwise.units import format_gib, format_seconds, format_usd, format_utilisation

RECOMPUTE_WIDTH = 21
"""Columns: that of ``full:12+optimizer+act``; longer lists of modules take more lines."""
NEEDED = "needs GiB"
"""The heading of what one GPU needs at the least, by which plans fit or do not."""


def search_text(
    result: SearchResult,
    *,
    sensitivity: Sensitivity | None = None,
    style: TextStyle = PLAIN,
    has_clock: bool = False,
    has_picture: bool = True,
) -> str:
    """Everything ``shardwise plan`` prints; with how long it took only where a person reads it (``has_clock``)."""
    parts = search_parts(result, sensitivity=sensitivity, has_clock=has_clock, has_picture=has_picture)
    return page_text(parts, style=style)


def search_parts(
    result: SearchResult,
    *,
    sensitivity: Sensitivity | None = None,
    has_clock: bool = False,
    has_picture: bool = True,
) -> Iterator[RenderableType]:
    """The parts of the page, in reading order."""
    if result.plans:
        yield from _found_parts(result, has_picture=has_picture)
        if sensitivity is not None:
            yield from _sensitivity_parts(sensitivity)
    elif result.missed is not None:
        yield from _missed_parts(result.missed)
    elif result.closest is not None:
        yield from _closest_parts(result.closest)
    else:
        yield Text("No plan: every layout breaks a rule of validity.", style="bold red")
        if result.repairs:
            yield Text()
            yield relief_table(result.repairs, title="What would have a plan, each searched again")
    yield Text()
    yield space_text(result.space, has_clock=has_clock)
    if result.rejected:
        yield Text()
        yield rejected_table(result)
    yield from assumption_parts(result.assumptions)


def _found_parts(result: SearchResult, *, has_picture: bool) -> Iterator[RenderableType]:
    best = result.plans[0]
    yield question_header(best.plan)
    yield Text()
    capacity = format_gib(best.prediction.memory.capacity_bytes)
    yield Text(
        f"Layouts that fit: the recommended, then the best first by {result.objective.replace('_', ' ')}; "
        f"GiB: needed per GPU, of {capacity}",
        style="bold",
    )
    yield ranking_table(result.plans)
    yield Text()
    yield Text("Recommended: " + layout_text(best.plan.layout), style="bold green")
    yield Text(best.why)
    yield from _picture_parts(best.prediction.memory)
    if best.prediction.cost is not None:
        yield cost_text(best.prediction.cost)
    yield from _runner_up_parts(result.plans[1:])
    front = search_front(result) if has_picture else None
    if front is not None:
        yield Text()
        yield from front_lines(front)
    for note in result.notes:
        yield Text()
        yield Text(note)


def _sensitivity_parts(sensitivity: Sensitivity) -> Iterator[RenderableType]:
    yield Text()
    yield Text(sensitivity.binding, style="bold")
    for change in sensitivity.changes:
        step = f"{format_seconds(change.step_s)} a step, {change_words(change)}"
        yield Text(f"{change.change}: {step}, as {degrees_text(change.plan.layout)}")


def _missed_parts(missed: MissedTargets) -> Iterator[RenderableType]:
    yield question_header(missed.plan)
    yield Text()
    yield Text(f"No plan: {missed.because}.", style="bold red")
    yield Text("The fastest is " + layout_text(missed.plan.layout))
    if missed.prediction.cost is not None:
        yield cost_text(missed.prediction.cost)
    if missed.changes:
        yield Text()
        yield target_table(missed.changes)


def _picture_parts(memory: MemoryPrediction) -> Iterator[RenderableType]:
    yield stage_picture(memory)
    yield picture_legend()
    yield Text(
        "(a bar ends at what nvidia-smi would show, cached blocks included; the plan needs "
        f"{gib_number(memory.needed_bytes)} of {format_gib(memory.capacity_bytes)})",
        style="dim",
    )


def _runner_up_parts(others: Sequence[RankedPlan]) -> Iterator[RenderableType]:
    if not others:
        return
    yield Text()
    yield Text("Why the others lost", style="bold")
    lines = Table.grid(padding=(0, 2))
    lines.add_column(justify="right")
    lines.add_column()
    for ranked in others:
        lines.add_row(str(ranked.rank), ranked.why)
    yield lines


def question_header(plan: Plan) -> Table:
    """What was asked, without the layout that is the answer."""
    header = Table.grid(padding=(0, 2))
    header.add_column(style="bold")
    header.add_column()
    header.add_row("model", model_text(plan.model))
    header.add_row("cluster", cluster_text(plan.cluster))
    header.add_row("recipe", question_text(plan.recipe))
    header.add_row("engine", engine_text(plan))
    return header


def ranking_table(plans: Sequence[RankedPlan]) -> Table:
    """One line a plan; ``=`` marks a tie with the recommended one."""
    has_cost = any(ranked.prediction.cost is not None for ranked in plans)
    table = plain_table(padding=(0, 1, 0, 0))
    table.add_column("#", justify="right", no_wrap=True)
    table.add_column("", width=1)
    table.add_column("layout", overflow="fold")
    table.add_column("recompute", overflow="fold", max_width=RECOMPUTE_WIDTH)
    for heading in ("mb", "GiB", "step", "MFU", *(("cost",) if has_cost else ())):
        table.add_column(heading, justify="right", no_wrap=True)
    for ranked in plans:
        table.add_row(*_ranking_row(ranked, has_cost=has_cost))
    return table


def _ranking_row(ranked: RankedPlan, *, has_cost: bool) -> list[str]:
    recipe, prediction = ranked.plan.recipe, ranked.prediction
    row = [
        str(ranked.rank),
        "=" if ranked.is_tie and ranked.rank > 1 else "",
        degrees_text(ranked.plan.layout),
        recompute_text(recipe),
        str(recipe.micro_batch_size),
        gib_number(prediction.memory.needed_bytes),
        format_seconds(prediction.time.step_s),
        format_utilisation(prediction.throughput.mfu_fraction),
    ]
    return [*row, _usd_text(prediction)] if has_cost else row


def _usd_text(prediction: Prediction) -> str:
    if prediction.cost is None or prediction.cost.usd is None:
        return "?"
    return format_usd(prediction.cost.usd)


def _closest_parts(closest: ClosestPlan) -> Iterator[RenderableType]:
    yield question_header(closest.plan)
    yield Text()
    yield Text(f"Nothing fits: no plan. The closest lacks {closest.lacks}:", style="bold red")
    yield Text(f"{layout_text(closest.plan.layout)}, {variant_words(closest.plan)}")
    yield Text(closest.because)
    yield from _picture_parts(closest.prediction.memory)
    if not closest.reliefs:
        return
    yield Text()
    yield relief_table(closest.reliefs, title="What would make it fit, each searched again")


def relief_table(reliefs: Sequence[Relief], *, title: str) -> Table:
    """Changed questions and what the fastest plan of each needs."""
    table = plain_table(title=title)
    table.add_column("change")
    table.add_column(NEEDED, justify="right")
    table.add_column("of", justify="right")
    table.add_column("step", justify="right")
    table.add_column("")
    for relief in reliefs:
        capacity = gib_number(relief.plan.cluster.gpu.memory_bytes)
        needed, step = gib_number(relief.needed_bytes), format_seconds(relief.step_s)
        table.add_row(relief.change, needed, capacity, step, relief.caution)
    return table


def space_text(space: SearchSpace, *, has_clock: bool = False) -> Text:
    """How many layouts were looked at and where they went; the clock would make equal answers differ in a file."""
    clock = f" in {format_seconds(space.wall_s)}" if has_clock else ""
    return Text(
        f"{space.layouts_considered:,} layouts considered{clock}: "
        f"{space.layouts_invalid:,} break a rule, {space.layouts_too_big:,} are too big, "
        f"{space.layouts_slower:,} are estimated slower, {space.layouts_predicted:,} predicted in full."
    )


def rejected_table(result: SearchResult) -> Table:
    """The rules that excluded layouts, with one example each."""
    table = plain_table(title="Excluded by a rule or by memory")
    table.add_column("rule")
    table.add_column("layouts", justify="right")
    table.add_column("for example, and what to change")
    for group in result.rejected:
        table.add_row(group.rule, f"{group.count:,}", f"{group.example}: {group.fix}")
    return table

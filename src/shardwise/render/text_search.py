"""A search as text: the ranked layouts, why each lost, what the rules excluded; or what came closest to fitting."""

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from shardwise.plan import Plan
from shardwise.prediction import Prediction
from shardwise.render.names import cluster_text, layout_text, model_text, recipe_text
from shardwise.render.terminal import PLAIN, TextStyle, page_text, plain_table
from shardwise.render.text_memory import stage_picture
from shardwise.render.text_prediction import assumption_parts, cost_text
from shardwise.search.records import ClosestPlan, RankedPlan, SearchResult, SearchSpace
from shardwise.units import format_gib, format_percent, format_seconds, format_usd

AXES = ("dp_replicate", "dp_shard", "tp", "cp", "pp", "vpp", "ep")
ALWAYS_SHOWN_AXES = ("dp_shard", "tp", "pp")


def search_text(result: SearchResult, *, style: TextStyle = PLAIN) -> str:
    """Everything ``shardwise plan`` prints."""
    return page_text(search_parts(result), style=style)


def search_parts(result: SearchResult) -> Iterator[RenderableType]:
    """The parts of the page, in reading order."""
    if result.plans:
        yield from _found_parts(result)
    elif result.closest is not None:
        yield from _closest_parts(result.closest)
    yield Text()
    yield space_text(result.space)
    if result.rejected:
        yield Text()
        yield rejected_table(result)
    yield from assumption_parts(result.assumptions)


def _found_parts(result: SearchResult) -> Iterator[RenderableType]:
    best = result.plans[0]
    yield question_header(best.plan)
    yield Text()
    yield Text(f"Layouts that fit, best first by {result.objective.replace('_', ' ')}", style="bold")
    yield ranking_table(result.plans)
    yield Text()
    yield Text("Recommended: " + layout_text(best.plan.layout), style="bold green")
    yield Text(best.why)
    yield stage_picture(best.prediction.memory)
    if best.prediction.cost is not None:
        yield cost_text(best.prediction.cost)
    yield from _runner_up_parts(result.plans[1:])
    for note in result.notes:
        yield Text()
        yield Text(note)


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
    header.add_row("recipe", recipe_text(plan.recipe))
    header.add_row("engine", plan.engine)
    return header


def ranking_table(plans: Sequence[RankedPlan]) -> Table:
    """One line a plan; axes that are 1 everywhere have no column."""
    axes = [axis for axis in AXES if axis in ALWAYS_SHOWN_AXES or any(_degree(plan, axis) > 1 for plan in plans)]
    has_cost = any(ranked.prediction.cost is not None for ranked in plans)
    table = plain_table()
    table.add_column("#", justify="right")
    for axis in axes:
        table.add_column(axis.replace("dp_replicate", "rep").replace("dp_shard", "dp"), justify="right")
    for heading in ("zero", "mb", "recompute", "GiB/GPU", "step", "MFU"):
        table.add_column(heading, justify="left" if heading == "recompute" else "right", no_wrap=True)
    if has_cost:
        table.add_column("cost", justify="right", no_wrap=True)
    for ranked in plans:
        table.add_row(*_ranking_row(ranked, axes=axes, has_cost=has_cost))
    return table


def _ranking_row(ranked: RankedPlan, *, axes: Sequence[str], has_cost: bool) -> list[str]:
    recipe, prediction = ranked.plan.recipe, ranked.prediction
    row = [
        f"{ranked.rank}{'=' if ranked.is_tie and ranked.rank > 1 else ''}",
        *(str(_degree(ranked, axis)) for axis in axes),
        str(ranked.plan.layout.zero_stage),
        str(recipe.micro_batch_size),
        recipe.recompute if recipe.offload == "none" else f"{recipe.recompute}+{recipe.offload}",
        format_gib(prediction.memory.worst.device_used_bytes).removesuffix(" GiB"),
        format_seconds(prediction.time.step_s),
        format_percent(prediction.throughput.mfu_fraction),
    ]
    return [*row, _usd_text(prediction)] if has_cost else row


def _usd_text(prediction: Prediction) -> str:
    if prediction.cost is None or prediction.cost.usd is None:
        return "?"
    return format_usd(prediction.cost.usd)


def _degree(ranked: RankedPlan, axis: str) -> int:
    layout = ranked.plan.layout
    degrees = {
        "dp_replicate": layout.dp_replicate,
        "dp_shard": layout.dp_shard,
        "tp": layout.tp,
        "cp": layout.cp,
        "pp": layout.pp,
        "vpp": layout.vpp,
        "ep": layout.ep,
    }
    return degrees[axis]


def _closest_parts(closest: ClosestPlan) -> Iterator[RenderableType]:
    yield question_header(closest.plan)
    yield Text()
    yield Text(f"Nothing fits. The closest lacks {format_gib(closest.missing_bytes)}:", style="bold red")
    yield Text(layout_text(closest.plan.layout))
    yield Text(closest.because)
    yield stage_picture(closest.prediction.memory)
    if not closest.reliefs:
        return
    yield Text()
    table = plain_table(title="What would make it fit, each searched again")
    table.add_column("change")
    table.add_column("GiB/GPU", justify="right")
    table.add_column("step", justify="right")
    table.add_column("")
    for relief in closest.reliefs:
        gib = format_gib(relief.device_used_bytes).removesuffix(" GiB")
        table.add_row(relief.change, gib, format_seconds(relief.step_s), relief.caution)
    yield table


def space_text(space: SearchSpace) -> Text:
    """How many layouts were looked at and where they went."""
    return Text(
        f"{space.layouts_considered:,} layouts considered in {format_seconds(space.wall_s)}: "
        f"{space.layouts_invalid:,} break a rule, {space.layouts_too_big:,} are too big, "
        f"{space.layouts_slower:,} are estimated slower, {space.layouts_predicted:,} predicted in full."
    )


def rejected_table(result: SearchResult) -> Table:
    """The rules that excluded layouts, with one example each."""
    table = plain_table(title="Excluded by a rule")
    table.add_column("rule")
    table.add_column("layouts", justify="right")
    table.add_column("for example")
    for group in result.rejected:
        table.add_row(group.rule, f"{group.count:,}", group.example)
    return table

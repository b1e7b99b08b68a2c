"""A sweep over clusters as text: a line a cluster, the recommended one, and the front as a picture."""

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from shardwise.render.front_picture import sweep_front
from shardwise.render.names import (
    days_number,
    degrees_text,
    gib_number,
    layout_text,
    model_text,
    question_text,
    recompute_text,
)
from shardwise.render.terminal import PLAIN, TextStyle, page_text, plain_table
from shardwise.render.text_front import front_lines
from shardwise.render.text_prediction import assumption_parts, cost_text
from shardwise.search import SweepResult, SweepRow, TargetChange
from shardwise.units import format_seconds, format_usd, format_utilisation

UNKNOWN = "?"


def sweep_text(result: SweepResult, *, style: TextStyle = PLAIN, has_picture: bool = True) -> str:
    """Everything ``shardwise plan --gpus`` prints."""
    return page_text(sweep_parts(result, has_picture=has_picture), style=style)


def sweep_parts(result: SweepResult, *, has_picture: bool = True) -> Iterator[RenderableType]:
    """The parts of the page, in reading order."""
    first = result.rows[0].question
    header = Table.grid(padding=(0, 2))
    header.add_column(style="bold")
    header.add_column()
    header.add_row("model", model_text(first.model))
    header.add_row("recipe", question_text(first.recipe))
    header.add_row("engine", first.engine)
    yield header
    yield Text()
    yield Text(f"The best layout on every cluster; compared by {result.objective.replace('_', ' ')}", style="bold")
    yield sweep_table(result)
    yield Text("(> recommended, = tied with the best, * on the front over time and cost)", style="dim")
    yield Text()
    yield from _answer_parts(result)
    picture = sweep_front(result) if has_picture else None
    if picture is not None:
        yield Text()
        yield from front_lines(picture)
    yield from _problem_parts(result.rows)
    yield from assumption_parts(result.assumptions)


def _answer_parts(result: SweepResult) -> Iterator[RenderableType]:
    row = result.recommended
    yield Text(result.why, style="bold green" if row is not None else "bold red")
    if row is not None and row.best is not None:
        yield Text(layout_text(row.best.plan.layout))
        if row.best.prediction.cost is not None:
            yield cost_text(row.best.prediction.cost)
    if result.changes:
        yield target_table(result.changes)


def sweep_table(result: SweepResult) -> Table:
    """One entry a cluster, of two lines: its price stands below its type, what is recomputed below its layout.

    Days and dollars of the run where its tokens are known, of a million tokens otherwise.
    """
    has_run = any(row.best is not None and row.best.prediction.cost is not None for row in result.rows)
    table = plain_table(padding=(0, 1, 0, 0))
    table.add_column("", no_wrap=True)
    table.add_column("GPUs", justify="right", no_wrap=True)
    table.add_column("type\nper hour", no_wrap=True)
    table.add_column("layout\nrecompute", overflow="fold")
    for heading in ("GiB", "step", "MFU", *(("days", "cost") if has_run else ("$/Mtok",))):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in result.rows:
        table.add_row(*_cells(row, is_recommended=row is result.recommended, has_run=has_run))
    return table


def _cells(row: SweepRow, *, is_recommended: bool, has_run: bool) -> list[str]:
    mark = ">" if is_recommended else "=" if row.is_tie else " "
    cluster = row.question.cluster
    price = "" if cluster.price is None else f"\n{format_usd(cluster.price.usd_per_gpu_hour)}"
    start = [mark + ("*" if row.is_on_front else " "), f"{cluster.num_gpus:,}", f"{cluster.gpu.id}{price}"]
    if row.best is None:
        return [*start, "no plan"]
    prediction = row.best.prediction
    layout = degrees_text(row.best.plan.layout) + ("" if row.meets_targets else " (missed)")
    recompute = recompute_text(row.best.plan.recipe).replace("+", " +")  # a line may end before what is offloaded
    figures = [
        f"{layout}\n{recompute}",
        gib_number(prediction.memory.needed_bytes),
        format_seconds(prediction.time.step_s),
        format_utilisation(prediction.throughput.mfu_fraction),
    ]
    usd = row.usd_per_million_tokens
    if not has_run:
        return [*start, *figures, UNKNOWN if usd is None else format_usd(usd)]
    cost = prediction.cost
    if cost is None:
        return [*start, *figures, UNKNOWN, UNKNOWN]
    return [*start, *figures, days_number(cost.days), UNKNOWN if cost.usd is None else format_usd(cost.usd)]


def _problem_parts(rows: Sequence[SweepRow]) -> Iterator[RenderableType]:
    problems = [row for row in rows if row.best is None]
    if not problems:
        return
    yield Text()
    yield Text("Clusters without a plan", style="bold")
    for row in problems:
        yield Text(f"{row.question.cluster.num_gpus:,} x {row.question.cluster.gpu.id}: {row.problem}")


def target_table(changes: Sequence[TargetChange]) -> Table:
    """The nearest changes under which the deadline and the budget are met."""
    table = plain_table(title="What would meet it, each predicted")
    table.add_column("change")
    table.add_column("days", justify="right")
    table.add_column("dollars", justify="right")
    table.add_column("")
    for change in changes:
        usd = UNKNOWN if change.usd is None else format_usd(change.usd)
        table.add_row(change.change, days_number(change.days), usd, change.caution)
    return table

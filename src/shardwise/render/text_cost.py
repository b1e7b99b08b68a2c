"""The cost of a whole run as text: one figure a line, with its band, and the price's origin."""

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from shardwise.prediction import CostPrediction, CostSensitivity
from shardwise.render.answer_words import run_words, with_band
from shardwise.render.names import model_text
from shardwise.render.next_lines import Following
from shardwise.render.question import plan_lines
from shardwise.render.run_cost import RunCost
from shardwise.render.screen_lines import screen_width
from shardwise.render.terminal import PLAIN, TextStyle, page_text
from shardwise.render.text_prediction import assumption_parts
from shardwise.units import format_count, format_days, format_mwh, format_percent, format_usd, format_whole


def run_cost_text(run: RunCost, *, commands: Sequence[str] = (), style: TextStyle = PLAIN) -> str:
    """Everything ``shardwise cost`` prints, with what to type next where it is given."""
    asked = [] if run.plan is None else plan_lines(run.plan, screen_width(style), assumed=run.assumed)
    return page_text([*run_cost_parts(run, asked), *Following(commands=commands).lines(style)], style=style)


def run_cost_parts(run: RunCost, asked: Sequence[Text]) -> Iterator[RenderableType]:
    """The parts of the page, in reading order, with the question as it was understood."""
    where = f"{run.num_gpus:,} x {run.gpu.name}"
    if run.fits is False:
        yield Text(f"It does not fit the memory of {where}; `shardwise explain` says why. If it did:", style="bold red")
    yield Text(f"{run_words(run.cost)} on {where}.", style="bold green")
    if run.fit == "at the edge":
        yield Text("Its memory: at the edge; `shardwise explain` says why.", style="bold yellow")
    yield Text()
    if asked:
        yield from asked
    else:
        yield _header(run)
    yield Text()
    yield cost_table(run.cost)
    if run.cost.sensitivities:
        yield Text()
        yield sensitivity_table(run.cost)
    yield from assumption_parts((*run.model.assumptions, *run.cost.assumptions))


def _header(run: RunCost) -> Table:
    header = _lines()
    header.add_row("model", model_text(run.model))
    header.add_row("hardware", f"{run.num_gpus:,} x {run.gpu.name}")
    header.add_row("tokens", format_count(run.cost.tokens))
    return header


def cost_table(cost: CostPrediction) -> Table:
    """GPU-hours, days, dollars, goodput and energy, each with its band."""
    low, high = format_percent(cost.goodput_low_fraction), format_percent(cost.goodput_high_fraction)
    table = _lines()
    table.add_row("GPU-hours", with_band(cost, cost.gpu_hours, format_whole))
    table.add_row("time", with_band(cost, cost.days, format_days))
    table.add_row("dollars", _money(cost))
    if cost.energy_mwh is not None:
        table.add_row("energy", with_band(cost, cost.energy_mwh, format_mwh))
    table.add_row("goodput", format_percent(cost.goodput_fraction) + ("" if low == high else f" ({low} to {high})"))
    return table


def sensitivity_table(cost: CostPrediction) -> Table:
    """Every assumption at its two ends, the one that moves the cost most first."""
    table = Table(box=None, padding=(0, 2, 0, 0), title="What moves it most", title_justify="left", title_style="bold")
    for heading in ("assumption", "from", "to", "between"):
        table.add_column(heading, justify="right" if heading in ("from", "to") else "left")
    for row in cost.sensitivities:
        table.add_row(row.assumption, *_ends(row), row.basis)
    return table


def _ends(row: CostSensitivity) -> tuple[str, str]:
    """Dollars where a price is known, GPU-hours otherwise."""
    if row.low_usd is None or row.high_usd is None:
        return f"{format_count(row.low_gpu_hours)} h", f"{format_count(row.high_gpu_hours)} h"
    return format_usd(row.low_usd), format_usd(row.high_usd)


def _money(cost: CostPrediction) -> str:
    if cost.usd is None or cost.usd_per_gpu_hour is None:
        return "no price is known for this hardware; give one with --price"
    price = f"{format_usd(cost.usd_per_gpu_hour)} per GPU and hour ({cost.price_source})"
    return f"{with_band(cost, cost.usd, format_usd)} at {price}"


def _lines() -> Table:
    lines = Table.grid(padding=(0, 2))
    lines.add_column(style="bold")
    lines.add_column()
    return lines

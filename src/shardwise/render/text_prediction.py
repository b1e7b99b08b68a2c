"""A prediction as text: the answer first, then memory, time, communication, throughput and cost."""

from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from shardwise.plan import Plan
from shardwise.prediction import (
    CostPrediction,
    ExposedCommunication,
    MemoryPrediction,
    Prediction,
    Throughput,
    TimePrediction,
)
from shardwise.render.answer_words import published_words, run_words, shown_words, speed_words, with_band
from shardwise.render.names import (
    plan_warnings,
    stated_assumptions,
)
from shardwise.render.next_lines import NOTHING_FOLLOWS, Following
from shardwise.render.question import plan_lines
from shardwise.render.screen_lines import screen_width
from shardwise.render.terminal import PLAIN, TextStyle, page_text, plain_table
from shardwise.render.text_memory import components_table, stage_picture
from shardwise.render.text_timeline import exposed_lines
from shardwise.units import (
    format_band,
    format_count,
    format_days,
    format_gb,
    format_gib,
    format_mwh,
    format_percent,
    format_seconds,
    format_usd,
    format_utilisation,
    format_whole,
)

MAX_COLLECTIVES = 8
"""Lines of the table of collectives; JSON has them all."""


def prediction_text(
    *,
    plan: Plan,
    prediction: Prediction,
    exposed: ExposedCommunication | None = None,
    following: Following = NOTHING_FOLLOWS,
    assumed: AbstractSet[str] = frozenset(),
    style: TextStyle = PLAIN,
) -> str:
    """Everything ``shardwise predict`` prints about one plan, with the first remedy of one that may not fit and the two
    commands to type next where they are given; fields of the question that nobody gave have a star."""
    asked = plan_lines(plan, screen_width(style), assumed=assumed)
    parts = prediction_parts(asked, plan=plan, prediction=prediction, exposed=exposed, following=following)
    return page_text([*parts, *following.lines(style)], style=style)


def prediction_parts(
    asked: Sequence[Text],
    *,
    plan: Plan,
    prediction: Prediction,
    exposed: ExposedCommunication | None = None,
    following: Following = NOTHING_FOLLOWS,
) -> Iterator[RenderableType]:
    """The parts of the page, in reading order, with the question as it was understood."""
    yield from answer_parts(plan, prediction)
    yield from following.remedy_parts
    yield Text()
    yield from asked
    yield Text()
    yield from memory_parts(prediction.memory)
    yield Text()
    yield from time_parts(prediction.time)
    if exposed is not None:
        yield from map(Text, exposed_lines(exposed))
    yield Text()
    yield throughput_text(prediction.throughput)
    if prediction.cost is not None:
        yield Text()
        yield cost_text(prediction.cost)
    yield from warning_parts(plan, prediction)
    yield from assumption_parts(stated_assumptions(plan=plan, prediction=prediction))


def answer_parts(plan: Plan, prediction: Prediction) -> Iterator[RenderableType]:
    """Whether it fits, how fast it is, the days and dollars of a whole run, and that no published run is as fast."""
    yield verdict_text(prediction)
    if shown := shown_words(prediction):
        yield Text(f"({shown})")
    yield Text(f"{speed_words(prediction)}.", style="bold")
    if prediction.cost is not None:
        yield Text(f"{run_words(prediction.cost)}.", style="bold")
    if published := published_words(plan, prediction):
        yield from (Text(), Text(f"Caution: {published}."))


def verdict_text(prediction: Prediction) -> Text:
    """One sentence: whether it fits by the memory band, and by how much."""
    memory = prediction.memory
    used = f"{format_gib(memory.needed_bytes)} needed of {format_gib(memory.capacity_bytes)} on the fullest GPU"
    if prediction.fit == "at the edge":
        more = f"a prediction of memory may be {format_percent(memory.high_fraction - 1)} too low"
        return Text(f"It is at the edge: {used}, and {more}.", style="bold yellow")
    if prediction.fits:
        return Text(f"It fits: {used}, {format_gib(memory.spare_bytes)} to spare.", style="bold green")
    if memory.fits_device:
        return Text(f"It does not fit: the GPUs hold it ({used}), the host does not.", style="bold red")
    return Text(f"It does not fit: {used}, {format_gib(memory.missing_bytes)} too much.", style="bold red")


def memory_parts(memory: MemoryPrediction) -> Iterator[RenderableType]:
    """The components of the fullest stage, then every stage as a bar."""
    worst = memory.worst
    yield Text(f"Memory of the fullest GPU: stage {worst.stage}, at {worst.peak_moment}", style="bold")
    yield components_table(worst)
    yield Text(
        f"allocated {format_gib(worst.peak_allocated_bytes)}, reserved {format_gib(worst.peak_reserved_bytes)}, "
        f"device used {format_gib(worst.device_used_bytes)}; "
        f"band {format_percent(memory.low_fraction)} to {format_percent(memory.high_fraction)} of the peak"
    )
    if memory.host_bytes_per_node or memory.nvme_bytes_per_node:
        yield _host_text(memory)
    yield Text()
    yield stage_picture(memory)


def _host_text(memory: MemoryPrediction) -> Text:
    ram = f" of {format_gib(memory.host_capacity_bytes)}" if memory.host_capacity_bytes else ""
    drives = f" of {format_gb(memory.nvme_capacity_bytes)}" if memory.nvme_capacity_bytes else ""
    return Text(
        f"host memory per node {format_gib(memory.host_bytes_per_node)}{ram}, "
        f"drives {format_gb(memory.nvme_bytes_per_node)}{drives}"
    )


def time_parts(time: TimePrediction) -> Iterator[RenderableType]:
    """The step and its parts, then the collectives."""
    band = format_band(time.step_low_s, time.step_high_s, of_s=time.step_s)
    yield Text(f"Step time {format_seconds(time.step_s)} ({band})", style="bold")
    parts = plain_table()
    parts.add_column("part")
    parts.add_column("time", justify="right")
    for entry in time.components:
        if entry.duration_s:
            parts.add_row(entry.component, format_seconds(entry.duration_s))
    yield parts
    if time.communication:
        yield Text()
        yield _communication_table(time)


def _communication_table(time: TimePrediction) -> Table:
    """The collectives that cost the most exposed time."""
    slowest = sorted(time.communication, key=lambda entry: (-entry.exposed_s, -entry.total_s))[:MAX_COLLECTIVES]
    hidden = len(time.communication) - len(slowest)
    more = f", the {len(slowest)} most exposed of {len(time.communication)}" if hidden else ""
    table = plain_table(title=f"Communication of one step{more}")
    table.add_column("what")
    table.add_column("over")
    for heading in ("payload", "calls", "total", "exposed"):
        table.add_column(heading, justify="right", no_wrap=True)
    for entry in slowest:
        table.add_row(
            entry.name,
            f"{entry.axis}={entry.group_size}",
            format_gb(entry.num_bytes),
            f"{entry.count:,}",
            format_seconds(entry.total_s),
            format_seconds(entry.exposed_s),
        )
    return table


def throughput_text(throughput: Throughput) -> Text:
    """Tokens per second and the share of the peak that does useful work."""
    return Text.assemble(
        ("Throughput ", "bold"),
        f"{format_count(throughput.tokens_per_s)} tokens/s, "
        f"{throughput.tokens_per_s_per_gpu:,.0f} tokens/s per GPU, "
        f"MFU {format_utilisation(throughput.mfu_fraction)}, HFU {format_utilisation(throughput.hfu_fraction)} "
        f"({throughput.mfu_convention})",
    )


def cost_text(cost: CostPrediction) -> Text:
    """The whole run in GPU-hours, days and dollars."""
    goodput = f"{format_percent(cost.goodput_low_fraction)} to {format_percent(cost.goodput_high_fraction)}"
    if cost.usd is None or cost.usd_per_gpu_hour is None:
        money = "no price is known for this hardware; `shardwise cost --price` takes one"
    else:
        rate = f"{format_usd(cost.usd_per_gpu_hour)} per GPU and hour ({cost.price_source})"
        money = f"{with_band(cost, cost.usd, format_usd)} at {rate}"
    energy = "" if cost.energy_mwh is None else f", {format_mwh(cost.energy_mwh)}"
    return Text.assemble(
        (f"{format_count(cost.tokens)} tokens ", "bold"),
        f"take {format_whole(cost.gpu_hours)} GPU-hours, {with_band(cost, cost.days, format_days)}{energy}; {money}; "
        f"goodput {format_percent(cost.goodput_fraction)} ({goodput})",
    )


def warning_parts(plan: Plan, prediction: Prediction) -> Iterator[RenderableType]:
    """Rules the plan breaks without becoming impossible, and switches that it gains nothing by."""
    for refusal in plan_warnings(plan, prediction):
        yield Text()
        yield Text.assemble(("Warning ", "bold yellow"), f"{refusal.message} [{refusal.rule}]; {refusal.fix}")


def assumption_parts(assumptions: tuple[str, ...]) -> Iterator[RenderableType]:
    """What was assumed, one line each."""
    if not assumptions:
        return
    yield Text()
    yield Text("Assumed", style="bold")
    for sentence in assumptions:
        line = Table.grid(padding=(0, 1))
        line.add_row("-", sentence)
        yield line

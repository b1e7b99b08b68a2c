"""The first screen of ``plan --gpus``: the recommended cluster, the others that stand on the front, what is next."""

from collections.abc import Sequence

from rich.text import Text

from shardwise.render.first_screen import (
    MIN_REASON_LINES,
    ScreenContext,
    hint_line,
    next_lines,
    plan_name,
    question_section,
    recommendation_lines,
)
from shardwise.render.names import cluster_text, days_number, gib_number
from shardwise.render.no_plan_screen import retry_lines, target_lines
from shardwise.render.retyped import retried
from shardwise.render.screen_lines import (
    INDENT,
    MAX_LINES,
    Section,
    fitting_lines,
    lines_of,
    screen_text,
    screen_width,
    whole_parts,
)
from shardwise.render.terminal import PLAIN, TextStyle
from shardwise.search import SweepResult, SweepRow
from shardwise.units import format_seconds, format_usd

MAX_ROWS = 4
"""Rows of other clusters, and more where the screen has room."""
MAX_REASON_LINES = 3
MAX_PROBLEM_LINES = 2
MAX_RETRY_LINES = 4
TABLE_LINES = 3
"""The heading of the table and the sources of its prices."""
FIGURES_WIDTH = 38
"""Columns of a cluster's figures; its name and its plan have the others."""


def sweep_screen(result: SweepResult, context: ScreenContext, *, style: TextStyle = PLAIN) -> str:
    """The screen of many clusters, or why none of them is recommended."""
    width = screen_width(style)
    row = result.recommended
    if row is None or row.best is None:
        return screen_text(_missed_sections(result, context, width), style=style)
    best = row.best
    label = f"Recommended of {len(result.rows)} clusters: " if len(result.rows) > 1 else "Recommended: "
    following = [*next_lines(best.plan, context, width), hint_line(width)]
    above: list[Section] = [
        question_section(best.plan, context, width, place=_place(result)),
        [
            *lines_of(cluster_text(row.question.cluster), width=width, most=2, label=label, look="bold green"),
            *recommendation_lines(best.plan, best.prediction, width, label=INDENT, look=""),
        ],
    ]
    problems = _problem_lines(result, width)
    room = MAX_LINES - sum(map(len, (*above, problems, following))) - MAX_REASON_LINES - TABLE_LINES
    sections = [*above, _row_lines(result, width, most=max(MAX_ROWS - len(problems), room)), problems]
    left = MAX_LINES - sum(map(len, (*sections, following)))
    if left < MIN_REASON_LINES:  # the hint goes first
        following.pop()
        left += 1
    why = fitting_lines(
        whole_parts(result.why, end="."), width=width, most=min(max(1, left), MAX_REASON_LINES), label="Why: "
    )
    return screen_text([*sections, why, following], style=style)


def _place(result: SweepResult) -> str:
    num_rows = len(result.rows)
    return f"{num_rows} clusters" if num_rows > 1 else cluster_text(result.rows[0].question.cluster)


def _missed_sections(result: SweepResult, context: ScreenContext, width: int) -> list[Section]:
    question = result.rows[0].question
    retries = [
        retried(context.command, change.change, asked=None, cluster=change.plan.cluster) for change in result.changes
    ]
    return [
        question_section(question, context, width, place=_place(result)),
        fitting_lines(whole_parts(result.why, end="."), width=width, most=4, label="", look="bold red"),
        _row_lines(result, width, most=MAX_ROWS),
        _problem_lines(result, width),
        target_lines(result.changes, width),
        [*retry_lines(retries, width, MAX_RETRY_LINES), hint_line(width)],
    ]


def _row_lines(result: SweepResult, width: int, *, most: int) -> list[Text]:
    """Other clusters, the fastest first: those on the front of time and cost, then those of least cost times time."""
    others = [row for row in result.rows if row is not result.recommended and row.best is not None]
    worthiest = sorted(others, key=lambda row: (not row.is_on_front, row.cost_times_time))
    shown = sorted(worthiest[:most], key=_step_s)
    if not shown:
        return []
    has_run = any(row.best is not None and row.best.prediction.cost is not None for row in shown)
    unit = ("days", "dollars") if has_run else ("", "$/1B tok")
    which = f"{len(shown)} of {len(others)} others" if len(others) > len(shown) else "Other clusters"
    title = f"{which}, $ per GPU and hour"
    heading = (
        f"{title[: width - FIGURES_WIDTH]:<{width - FIGURES_WIDTH}}{'GiB':>7}{'step':>10}{unit[0]:>9}{unit[1]:>11}"
    )
    rows = [_row_line(row, width, is_compared=result.recommended is not None) for row in shown]
    return [Text(heading[:width], style="bold"), *rows, *lines_of(_sources_text(result, shown), width=width, most=2)]


def _problem_lines(result: SweepResult, width: int) -> list[Text]:
    """The clusters without a plan, and why the first of them has none."""
    without = [row for row in result.rows if row.best is None]
    if not without:
        return []
    names = ", ".join(f"{row.question.cluster.num_gpus}x{row.question.cluster.gpu.id}" for row in without)
    first = "" if len(without) == 1 else f"{names.partition(',')[0]} "
    texts = whole_parts(f"No plan on {names}: {first}{without[0].problem}", end=".")
    return fitting_lines(texts, width=width, most=MAX_PROBLEM_LINES, label="")


def _sources_text(result: SweepResult, shown: Sequence[SweepRow]) -> str:
    """A line that names the source of each GPU's price, where they are not all of one kind."""
    best = [row.best.prediction.running_cost for row in (result.recommended, *shown) if row and row.best]
    gpus = [row.question.cluster.gpu.id for row in (result.recommended, *shown) if row and row.best]
    sources = {gpu: cost.price_source for gpu, cost in zip(gpus, best, strict=True) if cost is not None}
    if len(set(sources.values())) < 2:
        return ""
    return f"Prices: {'; '.join(f'{gpu} {source}' for gpu, source in sources.items())}."


def _step_s(row: SweepRow) -> float:
    return float("inf") if row.best is None else row.best.prediction.time.step_s


def _row_line(row: SweepRow, width: int, *, is_compared: bool) -> Text:
    """A cluster, and whether it misses what a recommended one meets."""
    if row.best is None:
        return Text()
    prediction, cluster = row.best.prediction, row.question.cluster
    running = prediction.running_cost
    rate = "" if running is None else f" at {format_usd(running.usd_per_gpu_hour)}"
    mark = " (missed)" if is_compared and not row.meets_targets else ""
    where = f"{cluster.num_gpus}x{cluster.gpu.id}{rate}{mark}: "
    named = where + plan_name(row.best.plan, width - FIGURES_WIDTH - len(INDENT) - len(where))
    (name,) = lines_of(named, width=width - FIGURES_WIDTH, most=1, label=INDENT)
    gib, step = gib_number(prediction.memory.needed_bytes), format_seconds(prediction.time.step_s)
    days, usd = "", None if running is None else running.usd_per_billion_tokens
    if prediction.cost is not None:
        days, usd = days_number(prediction.cost.days), prediction.cost.usd
    money = "?" if usd is None else format_usd(usd)
    return Text(f"{name.plain:<{width - FIGURES_WIDTH}}{gib:>7}{step:>10}{days:>9}{money:>11}"[:width])

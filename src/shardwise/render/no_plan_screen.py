"""The first screen of a search that found no plan: what is missing, and the nearest questions that have one."""

from collections.abc import Sequence

from rich.text import Text

from shardwise.cluster import Cluster
from shardwise.render.answer_words import hardware_words
from shardwise.render.first_screen import (
    ScreenContext,
    hint_line,
    question_section,
    recommendation_lines,
)
from shardwise.render.names import gib_number
from shardwise.render.retyped import retried
from shardwise.render.screen_lines import (
    DEEPER,
    INDENT,
    MAX_LINES,
    Section,
    command_lines,
    fitting_lines,
    lines_of,
    screen_text,
    screen_width,
    whole_parts,
)
from shardwise.render.terminal import PLAIN, TextStyle
from shardwise.search.one_pass import TOO_BIG
from shardwise.search.records import ClosestPlan, MissedTargets, Relief, SearchResult, TargetChange
from shardwise.units import format_days, format_gib, format_seconds, format_usd

MAX_ROWS = 5
MAX_LONG_ROWS = 3
"""So few have room for two lines each."""
LABELS = ("Next: ", "or: ")


def no_plan_screen(result: SearchResult, context: ScreenContext, *, style: TextStyle = PLAIN) -> str:
    """The closest plan and what would make it fit, the nearest targets that are met, or what breaks no rule."""
    width, asked = screen_width(style), None if result.question is None else result.question.cluster
    if result.missed is not None:
        sections = _missed_sections(result.missed, context, width)
        changes = [(change.change, change.plan) for change in result.missed.changes]
    elif result.closest is not None:
        sections = _closest_sections(result.closest, context, width, asked=asked)
        changes = [(relief.change, relief.plan) for relief in result.closest.reliefs]
    else:
        sections = _refused_sections(result, context, width)
        changes = [(relief.change, relief.plan) for relief in result.repairs]
    room = MAX_LINES - sum(map(len, sections)) - 1
    retries = [retried(context.command, change, asked=asked, cluster=plan.cluster) for change, plan in changes]
    return screen_text([*sections, [*retry_lines(retries, width, room), hint_line(width)]], style=style)


def retry_lines(retries: Sequence[str], width: int, room: int) -> list[Text]:
    """The first two changed commands, to type."""
    lines: list[Text] = []
    for label, command in zip(LABELS, filter(None, retries), strict=False):
        retry = command_lines(command, label, width)
        if len(lines) + len(retry) <= room:
            lines += retry
    return lines


def _missed_sections(missed: MissedTargets, context: ScreenContext, width: int) -> list[Section]:
    return [
        question_section(missed.plan, context, width),
        lines_of(f"No plan: {missed.because}.", width=width, most=3, look="bold red"),
        recommendation_lines(missed.plan, missed.prediction, width, label="The fastest is ", look="bold"),
        target_lines(missed.changes, width),
    ]


def target_lines(changes: Sequence[TargetChange], width: int) -> list[Text]:
    """The nearest changes under which a deadline and a budget are met, one a line."""
    if not changes:
        return []
    lines = [Text("What would meet it, each predicted", style="bold")]
    for change in changes[:MAX_ROWS]:
        price = change.plan.cluster.price
        usd = "" if change.usd is None else f", {format_usd(change.usd)}"
        usd += "" if price is None else f" at {format_usd(price.usd_per_gpu_hour)} per GPU and hour"
        lines += lines_of(f"{change.change}: {format_days(change.days)}{usd}", width=width, most=1, label=INDENT)
    return lines


def _closest_sections(
    closest: ClosestPlan, context: ScreenContext, width: int, *, asked: Cluster | None
) -> list[Section]:
    lacks = f"Nothing fits: no plan. The closest lacks {closest.lacks}:"
    return [
        question_section(closest.plan, context, width),
        [
            *lines_of(lacks, width=width, most=2, look="bold red"),
            *recommendation_lines(closest.plan, closest.prediction, width, label="", look=""),
            *lines_of(closest.because, width=width, most=2, label=INDENT),
        ],
        relief_lines(closest.reliefs, width, heading="What would make it fit, each searched again", asked=asked),
    ]


def _refused_sections(result: SearchResult, context: ScreenContext, width: int) -> list[Section]:
    """The question, the rules that it breaks (what the first repair mends stands first), and what has a plan."""
    changes = [relief.change for relief in result.repairs[:1]]
    broken = [group for group in result.rejected if group.rule != TOO_BIG]
    most = sorted(broken, key=lambda group: group.fix.removeprefix("set ") not in changes)[:2]
    or_big = "" if len(broken) == len(result.rejected) else " or does not fit"
    asked = result.question
    question = [] if asked is None else question_section(asked, context, width)
    return [
        question,
        [
            Text(f"No plan: every layout breaks a rule of validity{or_big}.", style="bold red"),
            *(
                line
                for group in most
                for line in lines_of(f"{group.example}: {group.fix}", width=width, most=3, label=INDENT)
            ),
        ],
        relief_lines(
            result.repairs,
            width,
            heading="What would have a plan, each searched again",
            asked=None if asked is None else asked.cluster,
        ),
    ]


def relief_lines(reliefs: Sequence[Relief], width: int, *, heading: str, asked: Cluster | None = None) -> list[Text]:
    """Changed questions, one a line, with the memory and the step of the fastest plan of each; dollars of hardware that
    is not what was asked about.

    Where a line is too short for all of it, figures go before what the change would cost besides.
    """
    if not reliefs:
        return []
    lines = [Text(heading[:width], style="bold")]
    most = 2 if len(reliefs) <= MAX_LONG_ROWS else 1
    for relief in reliefs[:MAX_ROWS]:
        capacity, needed = format_gib(relief.plan.cluster.gpu.memory_bytes), gib_number(relief.needed_bytes)
        memory = f"{needed} of {capacity}"
        step = f"{memory}, {format_seconds(relief.step_s)} a step"
        said = (*(f"{step}, {dollars}" for dollars in _dollars(relief, asked)), step, memory)
        after = [*("; ".join(filter(None, (one, relief.caution))) for one in said), *whole_parts(relief.caution)]
        texts = (": ".join(filter(None, (relief.change, words))) for words in after)
        lines += fitting_lines(texts, width=width, most=most, label=INDENT, indent=DEEPER)
    return lines


def _dollars(relief: Relief, asked: Cluster | None) -> tuple[str, ...]:
    """Dollars of other or of more hardware, the fullest words first; nothing on the hardware that was asked about."""
    cluster = relief.plan.cluster
    is_same = asked is None or (cluster.gpu.id, cluster.num_gpus) == (asked.gpu.id, asked.num_gpus)
    return () if is_same or relief.running_cost is None else hardware_words(relief.running_cost, beside=None)

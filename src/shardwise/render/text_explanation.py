"""An explanation as text: findings with their numbers and reasons, then the changes that were tried."""

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from shardwise.explain.changes import MAX_COMBINED
from shardwise.explain.records import Explanation, Finding, VerifiedChange
from shardwise.plan import Plan
from shardwise.prediction import Fit, Prediction
from shardwise.render.layout_words import layout_words, recipe_words
from shardwise.render.names import gib_number
from shardwise.render.next_lines import Following, ready_commands
from shardwise.render.question import plan_lines, question_lines
from shardwise.render.retyped import changed_command, mending_commands
from shardwise.render.screen_lines import screen_width
from shardwise.render.terminal import PLAIN, TextStyle, page_text, plain_table
from shardwise.render.text_memory import picture_legend, stage_picture
from shardwise.render.text_prediction import answer_parts
from shardwise.units import format_gib, format_percent, format_seconds

INDENT = 2
FITS_CELLS: Mapping[Fit, str] = {"fits": "yes", "at the edge": "at the edge", "does not fit": "no"}
"""Each verdict under the heading "fits", where edits need the room."""


def explanation_text(
    explanation: Explanation,
    *,
    command: str = "",
    assumed: AbstractSet[str] = frozenset(),
    style: TextStyle = PLAIN,
) -> str:
    """Everything ``shardwise explain`` prints, with what to type next where the command is given."""
    following = next_lines(explanation, command, assumed, style) if command else ()
    asked = plan_lines(explanation.plan, screen_width(style), assumed=assumed)
    return page_text([*explanation_parts(explanation, asked), *following], style=style)


def next_lines(explanation: Explanation, command: str, assumed: AbstractSet[str], style: TextStyle) -> Sequence[Text]:
    """The first remedy and a search of a plan that may not fit; what gains most and the run of one that does."""
    plan, change = explanation.plan, explanation.advised
    if not explanation.fits_safely:
        helps = change if change is not None and change.fits else None
        commands = mending_commands(command, plan, helps, assumed=assumed)
    else:
        faster = "" if change is None else changed_command(command, plan, change, assumed)
        commands = tuple(filter(None, (faster, *ready_commands(command, plan))))
    return [*Following(commands=commands, typed=command).lines(style)]


def findings_text(findings: Sequence[Finding], *, style: TextStyle = PLAIN) -> str:
    """Findings that are not about one predicted plan."""
    return page_text(finding_parts(findings), style=style).lstrip("\n")


def strategies_text(
    findings: Sequence[Finding], *, question: Plan, assumed: AbstractSet[str] = frozenset(), style: TextStyle = PLAIN
) -> str:
    """The question, then a comparison of strategies with its last finding, the recommendation, first."""
    asked = question_lines(question, screen_width(style), assumed=assumed)
    return page_text([*asked, *finding_parts((*findings[-1:], *findings[:-1]))], style=style)


def explanation_parts(explanation: Explanation, asked: Sequence[Text]) -> Iterator[RenderableType]:
    """The parts of the page, in reading order, with the question as it was understood."""
    yield from answer_parts(explanation.plan, explanation.prediction)
    best, first = explanation.best, explanation.first_change
    told = [] if best is None else [_best_words(best, explanation)]
    if first is not None:
        told.insert(0 if explanation.advised is first else 1, _first_words(first, explanation))
    if explanation.fastest_change is not None:
        told.append(f"Fastest of the changes: {_change_words(explanation.fastest_change, explanation)}.")
    yield from (Text(words, style="bold") for words in told)
    yield Text()
    yield from asked
    yield Text()
    yield stage_picture(explanation.prediction.memory)
    yield picture_legend()
    yield from finding_parts([finding for finding in explanation.findings if finding.topic != "verdict"])
    if explanation.changes:
        yield Text()
        yield changes_table(explanation.changes)


def _best_words(best: VerifiedChange, explanation: Explanation) -> str:
    """The plan that is recommended for the question, beside the one that is explained."""
    if not best.changes:
        return "It is the plan that `shardwise plan` recommends for this question."
    words = f"{layout_words(best.plan)}; {recipe_words(best.plan)}"
    start = "Best plan of this question" if explanation.is_best_better else "`shardwise plan` recommends another one"
    return f"{start}: {words}: {_needs_words(best, explanation.prediction)}."


def _first_words(change: VerifiedChange, explanation: Explanation) -> str:
    """The change to try first, with what it was predicted to need."""
    start = f"No change makes it fit, alone or up to {MAX_COMBINED} together; most is saved by"
    if change.fits:
        start = "Largest gain of one change" if explanation.fits_safely else "First remedy"
    return f"{start}: {_change_words(change, explanation)}."


def _change_words(change: VerifiedChange, explanation: Explanation) -> str:
    return f"{change.edit}: {_needs_words(change, explanation.prediction)}"


def _needs_words(change: VerifiedChange, prediction: Prediction) -> str:
    """Memory with its verdict, and the step, beside that of a plan that can run."""
    difference = 1 - change.step_ratio
    beside = ""
    if prediction.fits:
        beside = f", {format_percent(abs(difference))} {'less' if difference > 0 else 'more'}"
    return f"{format_gib(change.needed_bytes)} ({change.fit}), {format_seconds(change.step_s)} a step{beside}"


def finding_parts(findings: Sequence[Finding]) -> Iterator[RenderableType]:
    """Each finding as a paragraph: the claim, its numbers, the reason and what to do."""
    for finding in findings:
        yield Text()
        verdict = f": {finding.judged.verdict}" if finding.judged is not None else ""
        yield Text.assemble((f"[{finding.topic}{verdict}] ", "bold cyan"), (finding.claim, "bold"))
        if finding.numbers:
            numbers = ", ".join(f"{number.name} {number.text}" for number in finding.numbers)
            yield Padding(Text(numbers), (0, 0, 0, INDENT))
        if finding.because:
            yield Padding(Text(f"because {finding.because}"), (0, 0, 0, INDENT))
        if finding.suggestion:
            yield Padding(Text(f"-> {finding.suggestion}", style="green"), (0, 0, 0, INDENT))


def changes_table(changes: Sequence[VerifiedChange]) -> Table:
    """The changes in order, with the memory and step time each was predicted to have."""
    table = plain_table(title="Changes, each predicted again")
    table.add_column("change", overflow="fold")
    table.add_column("fits")
    table.add_column("needs GiB", justify="right")
    table.add_column("step", justify="right")
    table.add_column("it costs")
    for change in changes:
        table.add_row(
            change.edit,
            FITS_CELLS[change.fit],
            gib_number(change.needed_bytes),
            format_seconds(change.step_s),
            change.cost,
        )
    return table

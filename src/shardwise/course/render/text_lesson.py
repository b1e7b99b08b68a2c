"""A lesson as text: its numbers as tables, what was claimed beside what was computed, pictures in characters."""

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from shardwise.claims import Claim
from shardwise.course.lesson import Check, Lesson, LessonStep, Message
from shardwise.course.render.lesson_cells import cell_text
from shardwise.course.render.text_lesson_pictures import picture_parts
from shardwise.course.render.text_table import table_parts
from shardwise.render.terminal import PLAIN, TextStyle, page_text

VERDICT_STYLES = {"right": "green", "loose": "yellow", "wrong": "bold red", "unclear": "dim"}
INDENT = 2
MESSAGES_A_LINE = 4


def lessons_text(lessons: Sequence[Lesson], *, style: TextStyle = PLAIN) -> str:
    """Everything ``shardwise simulate`` prints without ``--step``."""
    return "\n\n".join(page_text(_lesson_parts(lesson, style), style=style) for lesson in lessons)


def lesson_heading_text(lesson: Lesson, *, style: TextStyle = PLAIN) -> str:
    """Title, what is simulated, and the settings."""
    return page_text(_heading_parts(lesson), style=style)


def step_texts(lesson: Lesson, *, style: TextStyle = PLAIN) -> Iterator[str]:
    """One text for every step of the walk."""
    if not lesson.steps:
        yield "This simulation has no steps to walk through.\n"
    for number, step in enumerate(lesson.steps, start=1):
        yield page_text(_step_parts(step, f"{number}/{len(lesson.steps)}", style.width), style=style)


def _lesson_parts(lesson: Lesson, style: TextStyle) -> Iterator[RenderableType]:
    yield from _heading_parts(lesson)
    for table in lesson.tables:
        yield Text()
        yield from table_parts(table, width=style.width)
    for picture in lesson.pictures:
        yield Text()
        yield from picture_parts(picture, width=style.width)
    if lesson.checks:
        yield Text()
        yield Text("Checks", style="bold")
        yield _checks_grid(lesson.checks)
    if lesson.claims:
        yield Text()
        yield Text("What is said, and what comes out", style="bold")
        yield _claims_grid(lesson.claims, found="measured" if lesson.is_measured else "computed")
    for note in lesson.notes:
        yield Text()
        yield Text(note)
    if lesson.steps:
        yield Text()
        yield Text(f"{len(lesson.steps)} steps: add --step to walk through them.")


def _heading_parts(lesson: Lesson) -> Iterator[RenderableType]:
    yield Text(lesson.title, style="bold")
    yield Text(lesson.what)
    if not lesson.settings:
        return
    grid = Table.grid(padding=(0, 2))
    for setting in lesson.settings:
        grid.add_row(setting.name, cell_text(setting.value, setting.unit), setting.meaning)
    yield Text()
    yield Padding(grid, (0, 0, 0, INDENT))


def _checks_grid(checks: Sequence[Check]) -> Table:
    grid = Table.grid(padding=(0, 1))
    for check in checks:
        mark, colour = ("ok", "green") if check.holds else ("FAIL", "bold red")
        text = f"{check.what}: {check.difference:.2g} (at most {check.limit:.2g})"
        grid.add_row("", Text(mark, style=colour), text)
    return grid


def _claims_grid(claims: Sequence[Claim], *, found: str) -> Table:
    grid = Table.grid(padding=(0, 1))
    for claim in claims:
        said, computed = cell_text(claim.said, claim.unit), cell_text(claim.computed, claim.unit)
        text = Text(f"{claim.says}: said {said}, {found} {computed} ({claim.source})")
        if claim.note:
            text.append(f"\n{claim.note}", style="italic")
        grid.add_row("", Text(claim.verdict, style=VERDICT_STYLES[claim.verdict]), text)
    return grid


def _step_parts(step: LessonStep, number: str, width: int) -> Iterator[RenderableType]:
    yield Text()
    yield Text.assemble((f"[{number}] ", "cyan"), (step.title, "bold"))
    if step.text:
        yield Padding(Text(step.text), (0, 0, 0, INDENT))
    for first in range(0, len(step.messages), MESSAGES_A_LINE):
        words = [message_text(message) for message in step.messages[first : first + MESSAGES_A_LINE]]
        yield Padding(Text("   ".join(words)), (0, 0, 0, INDENT))
    if step.table is not None:
        for part in table_parts(step.table, width=width - INDENT):
            yield Padding(part, (0, 0, 0, INDENT))


def message_text(message: Message) -> str:
    """A message as an arrow; a plus where the receiver adds it.

    >>> message_text(Message(sender=0, receiver=1, num_bytes=4096, what="chunk 2", adds=True))
    '0 -> 1: + chunk 2'
    """
    what = f"+ {message.what}" if message.adds else message.what
    return f"{message.sender} -> {message.receiver}" + (f": {what}" if what else "")

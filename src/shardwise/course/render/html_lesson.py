"""Lessons as one HTML file that works offline, in light and in dark: tables, pictures, and steps that can be walked."""

import re
from collections.abc import Iterator, Sequence
from html import escape

from shardwise.claims import Claim
from shardwise.course.lesson import Check, Lesson, LessonStep, LessonTable
from shardwise.course.render.lesson_cells import cell_text, is_number_column, row_texts
from shardwise.course.render.svg_lesson import picture_svg
from shardwise.course.render.text_lesson import message_text

PAGE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>@TITLE@</title>
<style>
:root { color-scheme: light dark; --ink: #222; --soft: #555; --paper: #fff; --rule: #ccc; --mark: #0072b2;
  --right: #00734f; --loose: #8a5a00; --wrong: #b3261e; --unclear: #5f6368; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e6e6; --soft: #a8a8a8; --paper: #16181d; --rule: #3a3e47;
  --mark: #56b4e9; --right: #4fd1a1; --loose: #f0b429; --wrong: #ff7a70; --unclear: #a8adb3; } }
body { font-family: system-ui, sans-serif; margin: 1.5rem auto; max-width: 66rem; padding: 0 1rem;
  color: var(--ink); background: var(--paper); line-height: 1.45; }
table { border-collapse: collapse; margin: 0.8rem 0; font-variant-numeric: tabular-nums; }
caption { text-align: left; font-weight: bold; padding-bottom: 0.3rem; }
th, td { padding: 0.2rem 0.9rem 0.2rem 0; text-align: left; vertical-align: top; border-bottom: 1px solid var(--rule); }
th.n, td.n { text-align: right; }
.scroll { overflow-x: auto; }
svg { width: 100%; min-width: 42rem; max-width: 66rem; height: auto; }
.note { color: var(--soft); }
.right, .ok { color: var(--right); } .loose { color: var(--loose); } .wrong, .fail { color: var(--wrong); }
.unclear { color: var(--unclear); }
.verdict { font-weight: bold; }
nav a { margin-right: 1rem; } a { color: var(--mark); }
.walk button { font: inherit; margin-right: 0.5rem; }
.walk .step { border-left: 3px solid var(--mark); padding-left: 0.8rem; margin: 0.6rem 0; }
.messages span { display: inline-block; margin-right: 1.2rem; white-space: nowrap; }
</style>
</head>
<body>
@BODY@
<script>
for (const walk of document.querySelectorAll(".walk")) {
  const steps = [...walk.querySelectorAll(".step")], place = walk.querySelector(".place");
  let at = 0;
  const show = (next) => {
    at = Math.min(Math.max(0, next), steps.length - 1);
    steps.forEach((step, index) => { step.hidden = index !== at; });
    place.textContent = (at + 1) + " of " + steps.length;
  };
  const bar = walk.querySelector(".bar");
  bar.hidden = false;
  bar.querySelector(".back").addEventListener("click", () => show(at - 1));
  bar.querySelector(".next").addEventListener("click", () => show(at + 1));
  show(0);
}
</script>
</body>
</html>
"""


def lessons_html(lessons: Sequence[Lesson]) -> str:
    """The whole page."""
    title = lessons[0].title if len(lessons) == 1 else "Simulations of distributed training"
    body: list[str] = []
    if len(lessons) > 1:
        links = "".join(f'<a href="#{escape(lesson.name)}">{escape(lesson.name)}</a>' for lesson in lessons)
        body += [f"<h1>{escape(title)}</h1>", f"<nav>{links}</nav>"]
    for lesson in lessons:
        body += _lesson(lesson)
    texts = {"TITLE": escape(title), "BODY": "\n".join(body)}
    return re.sub("@([A-Z]+)@", lambda found: texts[found[1]], PAGE)


def _lesson(lesson: Lesson) -> Iterator[str]:
    yield f'<section id="{escape(lesson.name)}">'
    yield f"<h1>{escape(lesson.title)}</h1>"
    yield f"<p>{escape(lesson.what)}</p>"
    if lesson.settings:
        yield '<div class="scroll"><table>'
        for setting in lesson.settings:
            cells = (setting.name, cell_text(setting.value, setting.unit), setting.meaning)
            yield f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>"
        yield "</table></div>"
    for table in lesson.tables:
        yield from _table(table)
    for picture in lesson.pictures:
        yield f'<div class="scroll">{picture_svg(picture)}</div>'
    if lesson.steps:
        yield from _walk(lesson.steps)
    if lesson.checks:
        yield "<h2>Checks</h2><ul>"
        yield from map(_check, lesson.checks)
        yield "</ul>"
    if lesson.claims:
        yield from _claims(lesson.claims, found="measured" if lesson.is_measured else "computed")
    for note in lesson.notes:
        yield f"<p>{escape(note)}</p>"
    yield "</section>"


def _table(table: LessonTable) -> Iterator[str]:
    marks = [' class="n"' if is_number_column(table, index) else "" for index in range(len(table.columns))]
    headings = "".join(
        f"<th{mark}>{escape(column.name)}</th>" for column, mark in zip(table.columns, marks, strict=True)
    )
    yield f'<div class="scroll"><table><caption>{escape(table.title)}</caption>'
    yield f"<thead><tr>{headings}</tr></thead><tbody>"
    for cells in row_texts(table):
        row = "".join(f"<td{mark}>{escape(cell)}</td>" for cell, mark in zip(cells, marks, strict=True))
        yield f"<tr>{row}</tr>"
    yield "</tbody></table></div>"
    if table.note:
        yield f'<p class="note">{escape(table.note)}</p>'


def _walk(steps: Sequence[LessonStep]) -> Iterator[str]:
    """All steps are on the page; its script shows one at a time."""
    yield (
        '<div class="walk"><h2>Step by step</h2><p class="bar" hidden><button class="back">back</button>'
        '<button class="next">next</button><span class="place"></span></p>'
    )
    for step in steps:
        yield f'<div class="step"><h3>{escape(step.title)}</h3>'
        if step.text:
            yield f"<p>{escape(step.text)}</p>"
        if step.messages:
            words = "".join(f"<span>{escape(message_text(message))}</span>" for message in step.messages)
            yield f'<p class="messages">{words}</p>'
        if step.table is not None:
            yield from _table(step.table)
        yield "</div>"
    yield "</div>"


def _check(check: Check) -> str:
    mark = '<span class="ok">ok</span>' if check.holds else '<span class="fail">FAILS</span>'
    return f"<li>{mark} {escape(check.what)}: {check.difference:.2g} (at most {check.limit:.2g})</li>"


def _claims(claims: Sequence[Claim], *, found: str) -> Iterator[str]:
    yield "<h2>What is said, and what comes out</h2>"
    yield f'<div class="scroll"><table><thead><tr><th>claim</th><th>said</th><th>{found}</th><th></th></tr></thead>'
    yield "<tbody>"
    for claim in claims:
        note = f'<br><span class="note">{escape(claim.note)}</span>' if claim.note else ""
        yield (
            f'<tr><td>{escape(claim.says)} <span class="note">({escape(claim.source)})</span>{note}</td>'
            f"<td>{escape(cell_text(claim.said, claim.unit))}</td>"
            f"<td>{escape(cell_text(claim.computed, claim.unit))}</td>"
            f'<td class="verdict {claim.verdict}">{claim.verdict}</td></tr>'
        )
    yield "</tbody></table></div>"

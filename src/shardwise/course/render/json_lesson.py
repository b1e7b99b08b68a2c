"""Lessons and labs as JSON: every number in its base unit, with the unit beside it."""

from collections.abc import Sequence
from dataclasses import asdict

from shardwise.course.lesson import Check, Lesson, LessonStep, LessonTable, Picture

LESSONS_SCHEMA = "shardwise.lessons/1"
LAB_SCHEMA = "shardwise.lab/1"
PICTURE_KINDS = {
    "MessagePicture": "messages",
    "GanttPicture": "gantt",
    "CurvePicture": "curves",
    "BarPicture": "bars",
}


def lessons_object(lessons: Sequence[Lesson]) -> dict[str, object]:
    """All lessons, also when there is one."""
    return {
        "schema": LESSONS_SCHEMA,
        "is_simulated": True,
        "holds": all(check.holds for lesson in lessons for check in lesson.checks),
        "lessons": [lesson_object(lesson) for lesson in lessons],
    }


def lab_object(lesson: Lesson, runs: Sequence[dict[str, object]], *, is_complete: bool) -> dict[str, object]:
    """The report of a lab, and every run with its plan, prediction and measurement."""
    return {
        "schema": LAB_SCHEMA,
        "is_simulated": False,
        "is_complete": is_complete,
        **lesson_object(lesson),
        "runs": list(runs),
    }


def lesson_object(lesson: Lesson) -> dict[str, object]:
    """One lesson, its parts in reading order."""
    return {
        "name": lesson.name,
        "title": lesson.title,
        "what": lesson.what,
        "settings": [asdict(setting) for setting in lesson.settings],
        "tables": [table_object(table) for table in lesson.tables],
        "checks": [check_object(check) for check in lesson.checks],
        "claims": [asdict(claim) for claim in lesson.claims],
        "steps": [step_object(step) for step in lesson.steps],
        "pictures": [picture_object(picture) for picture in lesson.pictures],
        "notes": list(lesson.notes),
    }


def table_object(table: LessonTable) -> dict[str, object]:
    """Columns with units, and rows of raw numbers."""
    return {
        "title": table.title,
        "columns": [{"name": column.name, "unit": column.unit} for column in table.columns],
        "rows": [list(row) for row in table.rows],
        "note": table.note,
    }


def check_object(check: Check) -> dict[str, object]:
    """The difference, the limit and the verdict."""
    return {"what": check.what, "difference": check.difference, "limit": check.limit, "holds": check.holds}


def step_object(step: LessonStep) -> dict[str, object]:
    """A stop of the walk with its messages."""
    return {
        "title": step.title,
        "text": step.text,
        "messages": [asdict(message) for message in step.messages],
        "table": None if step.table is None else table_object(step.table),
    }


def picture_object(picture: Picture) -> dict[str, object]:
    """The data of a picture, with its kind."""
    return {"kind": PICTURE_KINDS[type(picture).__name__], **asdict(picture)}

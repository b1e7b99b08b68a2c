"""A lab as ``shardwise.lab/1``: every run with its plan, prediction and measurement, and the report."""

from collections.abc import Sequence

from shardwise.course.lesson import Lesson
from shardwise.course.render.json_lesson import lesson_object

LAB_SCHEMA = "shardwise.lab/1"


def lab_object(lesson: Lesson, runs: Sequence[dict[str, object]], *, is_complete: bool) -> dict[str, object]:
    """The report and the raw numbers of its runs."""
    return {
        "schema": LAB_SCHEMA,
        "is_simulated": False,
        "is_complete": is_complete,
        **lesson_object(lesson),
        "runs": list(runs),
    }

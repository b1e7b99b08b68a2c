"""Lines of ``metrics.jsonl`` that led to where a run stands: a rollback leaves those of abandoned steps in the file.

Every line names the life of the run that wrote it, the life that it went on from, and after which step. The life of
the last line and its ancestors, each up to that step, are the lineage.
"""

import json
from collections.abc import Mapping
from typing import Any

__all__ = ["lineage_lines"]

Line = Mapping[str, Any]


def lineage_lines(text: str) -> list[Line]:
    """The records of the current lineage, in the order of their steps.

    Lines of versions before lives name none. There, and within a life, a step that is not above the one before takes
    the place of all that were written from it on. A line that was cut short by a crash is left out.
    """
    lives: dict[object, list[Line]] = {}
    parents: dict[object, tuple[object, object]] = {}
    life: object = None
    for line in filter(None, map(_parsed, text.splitlines())):
        life = line.get("life") or ""
        _before(lives.setdefault(life, []), line["step"]).append(line)
        parents[life] = (line.get("parent_life"), line.get("parent_step"))
    found: list[Line] = []
    last_step = float("inf")
    while life in lives:
        found[:0] = [line for line in lives.pop(life) if not _is_number(line["step"]) or line["step"] <= last_step]
        life, parent_step = parents[life]
        if not isinstance(life, str) or not isinstance(parent_step, int):
            break
        last_step = min(last_step, parent_step)
    return found


def _parsed(line: str) -> Line | None:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and "step" in found and isinstance(found.get("life", ""), str) else None


def _before(lines: list[Line], step: object) -> list[Line]:
    """The lines that stay once the line of ``step`` is read: those of earlier steps."""
    while lines and _is_number(step) and _is_number(lines[-1]["step"]) and lines[-1]["step"] >= step:
        lines.pop()
    return lines


def _is_number(value: object) -> bool:
    return isinstance(value, int | float)

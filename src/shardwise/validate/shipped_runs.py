"""The published runs that predictions are compared with, each with the plan that repeats it.

``catalog/measurements`` holds them ready: ``memory_runs.jsonl`` and ``timed_runs.jsonl`` one run a line, with its plan
as in a plan file, and ``unused_rows.csv`` the published rows that no plan repeats, with the reason. How they were made
from the tables of their sources is ``benchmarks/published``.
"""

import csv
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Any, Literal

from shardwise.plan_file import read_plan
from shardwise.validate.records import MeasuredRun, TimedRun, UnusedRow

Table = Literal["memory", "time"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRuns:
    """Published readings of peak memory: those that a plan repeats, and the rows left out."""

    runs: tuple[MeasuredRun, ...]
    unused: tuple[UnusedRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedRuns:
    """Published rates: those of runs that a plan repeats, and the rows left out."""

    runs: tuple[TimedRun, ...]
    unused: tuple[UnusedRow, ...]


@lru_cache
def measured_runs() -> MeasuredRuns:
    """All published readings of peak memory."""
    runs = tuple(MeasuredRun(**fields) for fields in _lines("memory_runs.jsonl"))
    return MeasuredRuns(runs=runs, unused=_unused("memory"))


@lru_cache
def timed_runs() -> TimedRuns:
    """All published rates."""
    runs = tuple(TimedRun(**fields) for fields in _lines("timed_runs.jsonl"))
    return TimedRuns(runs=runs, unused=_unused("time"))


def _lines(name: str) -> Iterator[dict[str, Any]]:
    """The fields of one record after the other: the plan read, lists as tuples."""
    for line in _text(name).splitlines():
        fields = json.loads(line)
        lists = {key: tuple(value) for key, value in fields.items() if isinstance(value, list)}
        yield {**fields, **lists, "plan": read_plan(fields["plan"])}


def _unused(table: Table) -> tuple[UnusedRow, ...]:
    rows = csv.DictReader(_text("unused_rows.csv").splitlines())
    return tuple(
        UnusedRow(id=row["id"], family=row["family"], reason=row["reason"]) for row in rows if row["table"] == table
    )


def _text(name: str) -> str:
    return files("shardwise.catalog").joinpath("measurements", name).read_text(encoding="utf-8")

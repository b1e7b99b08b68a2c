"""Write the published runs with their plans: ``python -m benchmarks.published``, from the repository's root.

Reads the tables of the sources (``tables/``) and writes ``memory_runs.jsonl``, ``timed_runs.jsonl``,
``best_runs.csv`` and ``unused_rows.csv`` of ``src/shardwise/catalog/measurements``.
``tests/validate/test_shipped_runs.py`` holds that what is shipped is what this writes.
"""

import csv
import io
import json
from collections.abc import Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from benchmarks.published.best_runs import best_runs_text
from benchmarks.published.memory_rows import converted_memory
from benchmarks.published.rate_rows import converted_rates

from shardwise.plan import Plan
from shardwise.plan_file import plan_to_json, read_plan
from shardwise.validate.records import MeasuredRun, TimedRun

SHIPPED = Path(__file__).parents[2] / "src/shardwise/catalog/measurements"


def main() -> None:
    """Write the four files."""
    for name, text in shipped_texts().items():
        (SHIPPED / name).write_text(text, encoding="utf-8")


def shipped_texts() -> dict[str, str]:
    """The text of each shipped file by its name."""
    memory, rates = converted_memory(), converted_rates()
    unused = io.StringIO()
    writer = csv.writer(unused, lineterminator="\n")
    writer.writerow(("table", "id", "family", "reason"))
    writer.writerows(("memory", row.id, row.family, row.reason) for row in memory.unused)
    writer.writerows(("time", row.id, row.family, row.reason) for row in rates.unused)
    return {
        "memory_runs.jsonl": "".join(_line(run) for run in memory.runs),
        "timed_runs.jsonl": "".join(_line(run) for run in rates.runs),
        "best_runs.csv": best_runs_text(rates.runs),
        "unused_rows.csv": unused.getvalue(),
    }


def _line(run: MeasuredRun | TimedRun) -> str:
    """One run as a line of JSON, without fields that have their default."""
    values = {field.name: getattr(run, field.name) for field in fields(run) if field.name != "plan"}
    defaults = {field.name: field.default for field in fields(run) if field.default is not MISSING}
    kept = {name: value for name, value in values.items() if name not in defaults or value != defaults[name]}
    return json.dumps({**kept, "plan": _short_plan(run.plan)}) + "\n"


def _short_plan(plan: Plan) -> dict[str, Any]:
    """The plan file of a plan, without what reading fills in alike."""
    whole = dict(plan_to_json(plan))
    short = {key: value for key, value in whole.items() if key != "schema"}
    for part, record in (("recipe", plan.recipe), ("layout", plan.layout)):
        short[part] = _without_defaults(whole[part], record)
    return short if _is_read_as(plan, short) else whole


def _without_defaults(values: Mapping[str, Any], record: Any) -> dict[str, Any]:
    defaults = {field.name: field.default for field in fields(record)}
    return {name: value for name, value in values.items() if value != defaults[name] or name == "compile"}


def _is_read_as(plan: Plan, document: Mapping[str, Any]) -> bool:
    read = read_plan(document)
    return (read.model, read.cluster, read.recipe, read.layout, read.engine) == (
        plan.model,
        plan.cluster,
        plan.recipe,
        plan.layout,
        plan.engine,
    )


if __name__ == "__main__":
    main()

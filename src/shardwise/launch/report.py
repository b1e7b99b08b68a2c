"""Writes the page of a finished run into its folder: ``python -m shardwise.launch.report RUN_FOLDER``.

``shardwise train`` does so at the end of a run that it follows. A run that a script starts does so by this module.
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shardwise.errors import ShardwiseError, UsageError
from shardwise.launch.folder import METRICS_FILE
from shardwise.measure.own_lines import lineage_lines
from shardwise.measure.trace_files import PLAN_FILE
from shardwise.plan import Plan
from shardwise.plan_file import read_plan
from shardwise.predict import predict
from shardwise.prediction import Prediction
from shardwise.reconcile.measured import MEASUREMENT_FILE, measurement_in, require_run, totals_of_measurement
from shardwise.reconcile.utilisation import Utilisation, utilisations
from shardwise.render.errors import error_text
from shardwise.render.html_training import FinishedRun, training_html
from shardwise.train.failure.full_disk import writing

__all__ = ["REPORT_FILE", "used_by", "write_report"]

REPORT_FILE = "report.html"


def write_report(
    folder: Path, *, plan: Plan, prediction: Prediction, measured: Mapping[str, Any], used: tuple[Utilisation, ...]
) -> Path:
    """Write the page and return its path."""
    metrics, recipe = folder / METRICS_FILE, folder / "recipe.json"
    run = FinishedRun(
        plan=plan,
        prediction=prediction,
        measured=measured,
        used=used,
        steps=lineage_lines(metrics.read_text(encoding="utf-8")) if metrics.is_file() else [],
        recipe=json.loads(recipe.read_text(encoding="utf-8")) if recipe.is_file() else {},
        folder=folder,
    )
    path = folder / REPORT_FILE
    with writing(path):
        path.write_text(training_html(run), encoding="utf-8")
    return path


def used_by(plan: Plan, prediction: Prediction, measured: Mapping[str, Any]) -> tuple[Utilisation, ...]:
    """How much of its machine a run used."""
    totals = totals_of_measurement(measured)
    return utilisations(plan, prediction, step_s=totals.step_s, device=totals.device)


def main(words: list[str]) -> int:
    """Write the page of the run in the folder that is named, or say in one sentence why there is none."""
    try:
        path = _write_page(words)
    except ShardwiseError as error:
        sys.stderr.write(error_text(message=error.message, code=error.code, fix=error.fix))
        return error.exit_code
    sys.stderr.write(f"wrote {path}\n")
    return 0


def _write_page(words: list[str]) -> Path:
    if len(words) != 1 or not Path(words[0]).is_dir():
        raise UsageError(
            f"'{' '.join(words)}' is no run folder",
            code="cli-usage",
            fix="name one folder: python -m shardwise.launch.report runs/NAME",
        )
    folder = Path(words[0])
    require_run(folder)
    plan, measured = read_plan(folder / PLAN_FILE), measurement_in(folder / MEASUREMENT_FILE)
    prediction = predict(plan)
    used = used_by(plan, prediction, measured)
    return write_report(folder, plan=plan, prediction=prediction, measured=measured, used=used)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

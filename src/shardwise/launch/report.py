"""Writes the page of a finished run into its folder: ``python -m shardwise.launch.report RUN_FOLDER``.

``shardwise train`` does so at the end of a run that it follows. A run that a script starts does so by this module.
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shardwise.launch.folder import METRICS_FILE
from shardwise.measure.own_lines import lineage_lines
from shardwise.plan import Plan
from shardwise.plan_file import read_plan
from shardwise.predict import predict
from shardwise.prediction import Prediction
from shardwise.reconcile.measured import totals_of_measurement
from shardwise.reconcile.utilisation import Utilisation, utilisations
from shardwise.render.html_training import FinishedRun, training_html
from shardwise.train.failure.full_disk import writing

__all__ = ["REPORT_FILE", "used_by", "write_report"]

REPORT_FILE = "report.html"


def write_report(folder: Path, *, plan: Plan, prediction: Prediction, measured: Mapping[str, Any]) -> Path:
    """Write the page and return its path."""
    metrics, recipe = folder / METRICS_FILE, folder / "recipe.json"
    run = FinishedRun(
        plan=plan,
        prediction=prediction,
        measured=measured,
        used=used_by(plan, prediction, measured),
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
    return tuple(utilisations(plan, prediction, step_s=totals.step_s, device=totals.device))


def main(words: list[str]) -> int:
    """Write the page of the run in the folder that is named."""
    folder = Path(words[0])
    plan = read_plan(folder / "plan.json")
    measured = json.loads((folder / "measurement.json").read_text(encoding="utf-8"))
    path = write_report(folder, plan=plan, prediction=predict(plan), measured=measured)
    sys.stderr.write(f"wrote {path}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Runs of one H200 that were predicted before they were made (``benchmarks/results/2026-12-01-h200-unseen.md``)."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median

from shardwise.calibration_file import read_calibration
from shardwise.plan_file import read_plan
from shardwise.predict import predict
from shardwise.predict.calibrated_cluster import calibrated_cluster

RESULTS = Path(__file__).parents[2] / "benchmarks/results"


def rows(name: str) -> Iterator[dict]:
    yield from map(json.loads, (RESULTS / name).read_text(encoding="utf-8").splitlines())


def test_ten_shapes_of_every_kind_are_met():
    """Dense, experts, 8 bits, LoRA, QLoRA, small and by transformers: 3.9 % of the step at the median when they ran."""
    runs = list(rows("2026-12-01-h200-unseen.jsonl"))
    found = [(predict(read_plan(run["plan"])), run["measured"]) for run in runs]
    steps = [abs(one.time.step_s / measured["step_s"] - 1) for one, measured in found]
    peaks = [one.memory.worst.peak_allocated_bytes / measured["peak_allocated_bytes"] for one, measured in found]
    assert len(runs) == 10
    assert median(steps) <= 0.04
    assert median(abs(peak - 1) for peak in peaks) <= 0.02


def test_a_calibration_of_the_card_betters_dense_compiled_runs_and_worsens_none():
    """0.7 % at the median, 2.2 by the catalogue; the file is of the same card."""
    calibration = read_calibration(RESULTS / "2026-12-01-h200-calibration-2.json")
    catalogued, calibrated = [], []
    for run in rows("2026-12-01-h200-calibrated-2.jsonl"):
        plan, step_s = read_plan(run["plan"]), run["measured"]["step_s"]
        measured = replace(plan, cluster=calibrated_cluster(plan.cluster, calibration))
        catalogued.append(abs(predict(plan).time.step_s / step_s - 1))
        calibrated.append(abs(predict(measured).time.step_s / step_s - 1))
    assert len(calibrated) == 11
    assert median(calibrated) <= 0.02
    assert all(after <= before + 0.005 for before, after in zip(catalogued, calibrated, strict=True))

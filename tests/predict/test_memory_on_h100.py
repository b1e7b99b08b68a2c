"""Predicted beside measured memory of our own runs on H100s (torch 2.11, transformers 5.17), 2026-11-27.

The readings are a digest of ``benchmarks/results/2026-11-27-h100-memory*.jsonl``: runs whose plan says everything
(transformers' own blocks, or peaks that no block decides). The memory model of the native engine was written against
these runs, so this test holds it in place; it is no independent evidence.
"""

import json
from pathlib import Path
from statistics import median

import pytest

from shardwise.plan_file import read_plan
from shardwise.predict.memory import predict_memory

RUNS = [
    json.loads(line)
    for line in (Path(__file__).parent / "data" / "h100_2026_11_27.jsonl").read_text(encoding="utf-8").splitlines()
]


@pytest.mark.parametrize("run", RUNS, ids=[run["name"] for run in RUNS])
def test_peak_allocated_is_within_two_percent(run):
    predicted = predict_memory(read_plan(run["plan"])).worst.peak_allocated_bytes
    assert predicted == pytest.approx(run["peak_allocated_bytes"], rel=0.02)


def test_half_of_the_peaks_are_within_half_a_percent():
    errors = [
        abs(predict_memory(read_plan(run["plan"])).worst.peak_allocated_bytes / run["peak_allocated_bytes"] - 1)
        for run in RUNS
    ]
    assert len(errors) == 26
    assert median(errors) <= 0.005


def test_reserved_memory_under_fsdp2_is_within_fifteen_percent():
    sharded = [run for run in RUNS if "dp_shard" in run["plan"]["layout"]]
    assert len(sharded) == 13
    for run in sharded:
        predicted = predict_memory(read_plan(run["plan"])).worst.peak_reserved_bytes
        assert predicted == pytest.approx(run["peak_reserved_bytes"], rel=0.15), run["name"]

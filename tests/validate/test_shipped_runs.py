"""The published runs that are shipped are those that their sources' tables become."""

from importlib.resources import files

import pytest
from benchmarks.published.__main__ import shipped_texts

from shardwise.validate.shipped_runs import measured_runs, timed_runs

SHIPPED = files("shardwise.catalog").joinpath("measurements")


@pytest.mark.parametrize("name", ["memory_runs.jsonl", "timed_runs.jsonl", "best_runs.csv", "unused_rows.csv"])
def test_what_is_shipped_is_what_the_tables_become(name):
    shipped = SHIPPED.joinpath(name).read_text(encoding="utf-8")
    assert shipped == shipped_texts()[name], "write it again: python -m benchmarks.published"


def test_a_run_is_read_with_its_plan():
    """Korthikanti et al. 2022, table 5: GPT 175B, selective recomputation, 13.75 s a step."""
    run = next(run for run in timed_runs().runs if run.id == "KORTH-004")
    assert run.measured_s == 13.75
    assert (run.plan.layout.tp, run.plan.layout.pp, run.plan.recipe.recompute) == (8, 8, "selective")


def test_a_further_reading_of_a_run_shares_its_plan():
    runs = {run.id: run for run in measured_runs().runs}
    assert runs["SIMUB200-001/reserved"].plan == runs["SIMUB200-001"].plan
    assert runs["SIMUB200-001/reserved"].scope == "reserved"


def test_the_measurement_tables_stay_below_four_megabytes():
    assert sum(len(entry.read_bytes()) for entry in SHIPPED.iterdir()) < 4_000_000

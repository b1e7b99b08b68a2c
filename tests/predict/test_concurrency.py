"""Slowing of computation and communication: the closed form, the choice of a ratio, and the measurement behind it."""

import csv
from pathlib import Path
from statistics import mean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.catalog import read_cluster
from shardwise.predict.concurrency import NETWORK_SLOWDOWN, SCALE_UP_SLOWDOWN, overlapped_s, slowdown_ratio
from shardwise.predict.group_placement import place_group
from shardwise.simulate.contention import Contention, run_contended
from shardwise.simulate.engine import Task

MEASURED = Path(__file__).parents[2] / "benchmarks" / "results" / "2026-11-27-h100-contention.csv"
SECONDS = st.floats(0.0, 10.0)


@given(work_s=SECONDS, hidden_s=SECONDS, ratio=st.floats(1.0, 2.0))
def test_the_closed_form_equals_the_event_engine(work_s, hidden_s, ratio):
    """What a ring of context parallelism takes under the attention of equal blocks."""
    program = [
        Task(name="attention", stream="compute", duration_s=work_s),
        Task(name="ring", stream="cp", duration_s=hidden_s),
    ]
    both = [
        Contention(slowed=("compute",), while_busy=("cp",), slowdown_ratio=ratio),
        Contention(slowed=("cp",), while_busy=("compute",), slowdown_ratio=ratio),
    ]
    closed_s = overlapped_s(work_s=work_s, hidden_s=hidden_s, ratio=ratio)
    assert closed_s == pytest.approx(run_contended(program, both).makespan_s, rel=1e-9, abs=1e-9)


def test_the_ratio_is_the_mean_of_six_measured_pairs():
    with MEASURED.open(encoding="utf-8", newline="") as stream:
        ratios = [float(row["slowdown_ratio"]) for row in csv.DictReader(stream)]
    assert len(ratios) == 6
    assert mean(ratios) == pytest.approx(SCALE_UP_SLOWDOWN, abs=0.005)


@pytest.mark.parametrize(
    ("cluster", "size", "expected"),
    [
        ("8xh100-sxm", 8, SCALE_UP_SLOWDOWN),
        ("16xh100-sxm", 16, NETWORK_SLOWDOWN),
        ("8xrtx-4090", 8, NETWORK_SLOWDOWN),
    ],
)
def test_only_groups_inside_one_fast_domain_take_the_measured_ratio(cluster, size, expected):
    placement = place_group(cluster=read_cluster(cluster), size=size, stride=1)
    assert slowdown_ratio(placement) == expected

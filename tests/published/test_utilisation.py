"""Published MFU and HFU follow from the published rates within 0.3 points, by each source's own convention."""

from collections import Counter

import numpy as np
import pytest
from benchmarks.published.rows import read_rows
from benchmarks.published.utilisation import COUNTINGS, NOT_RECOMPUTED, published_utilisations

from shardwise.predict.cost_sensitivity import PUBLISHED_MFU


@pytest.mark.parametrize("family", COUNTINGS)
def test_every_published_utilisation_follows_from_its_rate(family):
    own = [check for check in published_utilisations().utilisations if check.family == family]
    assert own
    for check in own:
        assert abs(check.difference_fraction) <= 0.003, (check.id, check.kind)


def test_as_many_as_are_published_beside_a_rate():
    counts = Counter((check.family, check.kind) for check in published_utilisations().utilisations)
    assert counts == {
        ("LLMF", "MFU"): 216,
        ("LLMF", "HFU"): 216,
        ("KORTH", "MFU"): 5,
        ("KORTH", "HFU"): 4,
        ("MEGASC", "MFU"): 8,
        ("TTPERF", "MFU"): 11,
        ("NEM15", "MFU"): 3,
        ("MTNLG", "MFU"): 1,
        ("MISC", "MFU"): 1,
    }


def test_no_utilisation_is_passed_over_without_a_reason():
    printed = {
        row.id
        for row in read_rows("throughput")
        if row.number("mfu_pct") is not None or row.number("hfu_pct") is not None
    }
    checked = published_utilisations()
    assert printed == {row.id for row in (*checked.utilisations, *checked.unused)}
    assert all(row.reason for row in checked.unused)
    assert not set(COUNTINGS) & set(NOT_RECOMPUTED)


def test_the_conventions_differ_by_more_than_the_tolerance():
    """llm-foundry's count of a Korthikanti row would miss its MFU, so the check can fail."""
    row = next(row for row in read_rows("throughput") if row.id == "KORTH-004")
    own, foreign = COUNTINGS["KORTH"].model(row), COUNTINGS["MTNLG"].model(row)
    assert abs(foreign / own - 1) * 0.514 > 0.003


SIXTEEN_BIT_TFLOP_PER_S = {"H100": 989.5, "B200": 2250, "GB200": 2500, "GB300": 2500}
UNTIED = ("TTPERF", "NEM15")


def counted_as_ours(row):
    """A published MFU with causal attention once, the input table left out, over the 16-bit peak."""
    printed, rate = row.number("mfu_pct") / 100, row.number("tflops_per_gpu")
    if row.family == "MBMOE" and rate is not None:  # over the peak of fp8
        return rate / SIXTEEN_BIT_TFLOP_PER_S[row.text("gpu").split("-")[0]]
    sizes = [row.number(name) for name in ("n_params", "n_layers", "d_model", "seq_len")]
    if row.family not in COUNTINGS or None in sizes:
        return printed
    num_params, num_layers, hidden_size, seq_len = sizes
    looked_up = (row.number("vocab") or 0) * hidden_size if row.family in UNTIED else 0
    ours = 6 * (num_params - looked_up) + 6 * num_layers * hidden_size * seq_len
    theirs = COUNTINGS[row.family].model(row)
    return printed * ours / theirs


ARCHITECTURES = {"A100": "Ampere", "H100": "Hopper"}


@pytest.mark.parametrize("stated", PUBLISHED_MFU, ids=lambda stated: stated.arch or "all")
def test_the_default_mfu_and_its_band_are_those_of_published_runs_on_the_architecture(stated):
    published = [
        counted_as_ours(row)
        for row in read_rows("throughput")
        if row.number("mfu_pct") is not None
        and (
            not stated.arch or any(ARCHITECTURES[gpu] == stated.arch for gpu in ARCHITECTURES if gpu in row.text("gpu"))
        )
    ]
    low, median, high = (float(end) for end in np.percentile(published, [5, 50, 95]))
    assert len(published) == stated.num_runs
    assert low == pytest.approx(stated.low_fraction, abs=0.005)
    assert high == pytest.approx(stated.high_fraction, abs=0.005)
    assert median == pytest.approx(stated.typical_fraction, abs=0.005)

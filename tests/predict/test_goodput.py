"""Goodput bands against published runs."""

import pytest

from catalog.tables import rows
from shardwise.predict.goodput import GOOD, MIN_FRACTION, POOR, TYPICAL, goodput_fraction, predict_goodput


def test_sixteen_thousand_gpus_keep_about_nine_tenths():
    """Llama 3 405B: more than 90 % effective training time on 16,384 GPUs; whole-run factor 0.855."""
    goodput = predict_goodput(num_gpus=16_384)
    assert goodput.fraction == pytest.approx(0.90, abs=0.01)
    assert goodput.low_fraction < 0.855 < goodput.high_fraction
    assert goodput.mtbf_s / 3600 == pytest.approx(2.34, abs=0.01)


def test_one_node_hardly_notices():
    assert predict_goodput(num_gpus=8).low_fraction > 0.99
    assert predict_goodput(num_gpus=1) == predict_goodput(num_gpus=8)


def test_more_gpus_never_have_a_higher_goodput():
    fractions = [predict_goodput(num_gpus=gpus).fraction for gpus in (8, 64, 1024, 16_384, 131_072)]
    assert fractions == sorted(fractions, reverse=True)


def test_failures_that_outrun_restarts_leave_a_floor():
    assert goodput_fraction(POOR, num_gpus=10**9) == MIN_FRACTION


def test_the_band_is_made_of_catalogue_rows():
    table = {(line["system"], line["metric"]): line["value"] for line in rows("reliability")}
    assert float(table["Meta RSC", "failure rate used in the ETTR model"]) == TYPICAL.failures_per_node_day
    assert float(table["Meta RSC-2 (A100)", "node failures"]) == GOOD.failures_per_node_day
    assert float(table["Meta RSC-1 (A100)", "node failures"]) == POOR.failures_per_node_day
    assert float(table["Meta RSC", "restart overhead, low"]) == GOOD.restart_s
    assert float(table["Meta RSC", "restart overhead, high"]) == POOR.restart_s
    assert float(table["PyTorch DCP 7B, asynchronous", "blocking time"]) == TYPICAL.blocking_s
    assert float(table["PyTorch DCP 7B to 13B, asynchronous", "blocking time, high"]) == POOR.blocking_s
    assert float(table["ByteCheckpoint, 405B GPT", "blocking time"]) == GOOD.blocking_s

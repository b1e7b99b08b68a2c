"""Model FLOP utilisation: which peak it is a share of, and when there is none."""

from dataclasses import replace

import pytest

from calibrations import full
from shardwise.plan_file import read_plan
from shardwise.predict import predict
from shardwise.predict.calibrated_cluster import calibrated_cluster
from shardwise.reconcile.utilisation import utilisations

PLAN = read_plan(
    {
        "model": "llama-3.1-8b",
        "cluster": "8xh100-sxm",
        "recipe": {"seq_len": 8192, "global_batch_size": 8},
        "layout": {"dp_shard": 8},
    }
)
H100 = "NVIDIA H100 80GB HBM3"
FLOP_PER_TOKEN = 51.5e9
"""docs/step_time.md: Llama-3-8B at 8,192 tokens."""


def used(plan, *, step_s=1.0, device=H100):
    return utilisations(plan, predict(plan), step_s=step_s, device=device)


def test_the_share_is_of_the_dense_peak_and_says_so():
    """8,192 tokens a GPU in a second, over 989.5 TFLOP/s; the sparse figure would halve it."""
    (found,) = used(PLAN)
    assert found.measured_fraction == pytest.approx(8192 * FLOP_PER_TOKEN / 989.5e12, rel=0.002)
    assert "dense bf16 peak of H100 SXM5 80GB, 989.5 TFLOP/s" in found.convention
    assert "6(N - input embedding) + causal attention" in found.convention


@pytest.mark.parametrize(
    ("device", "what"), [("x86_64", "no part of the catalogue"), ("NVIDIA A100-SXM4-80GB", "a100")]
)
def test_another_device_than_the_planned_one_is_refused(device, what):
    (found,) = used(PLAN, device=device)
    assert found.measured_fraction is None
    assert what in found.refusal
    assert "plan for what ran" in found.refusal


def test_a_log_that_names_no_device_is_believed():
    (found,) = used(PLAN, device="")
    assert found.measured_fraction is not None


def test_more_than_the_peak_is_refused():
    (found,) = used(PLAN, step_s=0.1)
    assert found.measured_fraction is None
    assert "cannot be" in found.refusal


def test_a_calibration_adds_the_share_of_the_best_measured_product():
    plan = replace(PLAN, cluster=calibrated_cluster(PLAN.cluster, full()))
    of_peak, of_product = used(plan)
    best = 2 * 4096**3 / 250e-6
    assert of_product.peak_flop_per_s == pytest.approx(best)
    assert "best measured bf16 product" in of_product.convention
    assert of_product.measured_fraction == pytest.approx(of_peak.measured_fraction * 989.5e12 / best, rel=1e-4)


def test_products_of_another_dtype_are_no_peak():
    calibration = full()
    other = tuple(replace(point, dtype="fp32") for point in calibration.products)
    plan = replace(PLAN, cluster=calibrated_cluster(PLAN.cluster, replace(calibration, products=other)))
    _, refused = used(plan)
    assert refused.predicted_fraction is refused.measured_fraction is None
    assert "timed no bf16 products" in refused.refusal


def test_products_of_another_machine_are_no_peak():
    """The calibration is of H100."""
    plan = replace(PLAN, cluster=calibrated_cluster(PLAN.cluster, full()))
    _, refused = used(plan, device="NVIDIA A100-SXM4-80GB")
    assert refused.measured_fraction is None
    assert "timed on NVIDIA H100 80GB HBM3" in refused.refusal


def test_a_part_whose_peak_nobody_states_is_refused():
    predicted = predict(PLAN)
    unknown = replace(predicted, throughput=replace(predicted.throughput, peak_flop_per_s=0.0))
    (refused,) = utilisations(PLAN, unknown, step_s=1.0, device=H100)
    assert refused.predicted_fraction is refused.measured_fraction is None
    assert "no source states that peak" in refused.refusal

"""Every missing measurement widens the band and is said."""

from dataclasses import replace

import pytest
from benchmarks.own_runs import FITTED, JUDGED, own_runs

import shapes
from shardwise.catalog import load_gpu, read_cluster
from shardwise.families import read_model
from shardwise.layout import Layout
from shardwise.plan import Plan
from shardwise.predict.assumptions import plan_assumptions
from shardwise.predict.time import predict_time
from shardwise.predict.time_band import (
    OWN_TRAINER,
    band_ratios,
    band_sentences,
    independent_ratios,
    is_attention_doubted,
)
from shardwise.recipe import Recipe
from shardwise.validate.accuracy import percentile

CLUSTER = read_cluster("1 x dgx-h100")


def plan_on(gpu_id="h100-sxm", *, model=None, precision="bf16-mixed", ep=1, engine="fsdp2"):
    return Plan(
        model=model or shapes.llama_3_8b(),
        cluster=replace(CLUSTER, node=replace(CLUSTER.node, gpu=load_gpu(gpu_id))),
        recipe=Recipe(seq_len=4096, precision=precision),
        layout=Layout(dp_shard=8, ep=ep),
        engine=engine,
    )


@pytest.mark.parametrize(
    ("gpu_id", "engine", "ratios"),
    [
        ("h100-sxm", "native", (0.92, 1.13)),
        ("h200-sxm", "native", (0.92, 1.13)),
        ("b200-sxm", "native", (0.81, 1.18)),
        ("h100-sxm", "megatron", (0.81, 1.18)),
        ("a100-sxm-80", "deepspeed", (0.81, 1.18)),
        ("h100-sxm", "fsdp1", (0.91, 1.2)),
        ("v100-sxm2-32", "deepspeed", (0.81, 1.66)),
        ("mi300x", "native", (0.81, 1.66)),
    ],
)
def test_the_less_is_known_of_a_part_and_an_engine_the_wider_the_band(gpu_id, engine, ratios):
    assert band_ratios(plan_on(gpu_id, engine=engine)) == ratios


def test_eight_bits_and_experts_widen_it_where_they_are_used():
    assert band_ratios(plan_on(precision="fp8-mixed")) == (0.72, 1.18)
    assert band_ratios(plan_on("a100-sxm-80", precision="fp8-mixed")) == (0.81, 1.18)
    mixture = read_model("mixtral-8x7b")
    assert band_ratios(plan_on(model=mixture)) == (0.81, 1.18)
    assert band_ratios(plan_on(model=mixture, engine="native")) == (0.81, 1.18)
    assert band_ratios(plan_on(model=mixture, ep=8)) == (0.8, 1.61)


def test_independent_causes_add_up_as_squares_of_logarithms():
    """``hypot(ln 1.2, ln 1.5)`` is 0.4446, ``hypot(ln 0.8, ln 0.6)`` 0.5574."""
    assert independent_ratios([(0.8, 1.2), (0.6, 1.5), (1.0, 1.0)]) == pytest.approx((0.5727, 1.5598), abs=1e-4)


def test_the_band_of_our_trainer_is_that_of_its_first_runs():
    ratios = [run.ratio for run in own_runs(FITTED)]
    assert len(ratios) == 30  # those of 44 whose units more than one rank held
    assert percentile(ratios, 0.05) == pytest.approx(OWN_TRAINER.low_ratio, abs=0.03)
    assert percentile(ratios, 0.95) == pytest.approx(OWN_TRAINER.high_ratio, abs=0.03)


def test_runs_of_later_days_lie_inside_the_band_of_our_trainer():
    """Fitted to none of them: 27 of 28, all but an 8-bit optimizer."""
    found = list(own_runs(JUDGED))
    assert len(found) == 28
    assert sum(run.is_in_band for run in found) >= 25


@pytest.mark.parametrize(
    ("gpu_id", "is_doubted"),
    [("a100-sxm-80", False), ("h200-sxm", False), ("b200-sxm", False), ("mi300x", True), ("v100-sxm2-32", True)],
)
def test_attention_of_an_architecture_it_was_never_timed_on_may_take_half_or_twice_as_long(gpu_id, is_doubted):
    plan = plan_on(gpu_id)
    assert is_attention_doubted(plan) is is_doubted
    assert any("attention was not timed on" in text for text in plan_assumptions(plan)) is is_doubted
    time, _ = predict_time(plan)
    assert not is_attention_doubted(replace(plan, recipe=replace(plan.recipe, attention="eager")))
    low, high = band_ratios(plan)
    if is_doubted:
        assert time.step_low_s < 0.995 * low * time.step_s
        assert time.step_high_s > 1.005 * high * time.step_s


def test_cudnn_was_timed_on_b200():
    assert not is_attention_doubted(plan_on("b200-sxm", engine="megatron"))
    assert not is_attention_doubted(plan_on("b200-sxm", engine="native"))


def test_the_reasons_are_said():
    (said,) = band_sentences(plan_on("h200-sxm", precision="fp8-mixed"))
    assert said.startswith("the band of 0.72 to 1.18 of the step time")
    assert "timed on its architecture" in said
    assert "8-bit products" in said
    assert not tuple(band_sentences(plan_on()))
    assert not tuple(band_sentences(plan_on(engine="native")))

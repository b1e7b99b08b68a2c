"""Every missing measurement widens the band and is said."""

from dataclasses import replace

import pytest

import shapes
from shardwise.catalog import load_gpu, read_cluster
from shardwise.families import read_model
from shardwise.layout import Layout
from shardwise.plan import Plan
from shardwise.predict.assumptions import plan_assumptions
from shardwise.predict.time import predict_time
from shardwise.predict.time_band import band_ratios, band_sentences, is_attention_doubted
from shardwise.recipe import Recipe

CLUSTER = read_cluster("1 x dgx-h100")


def plan_on(gpu_id="h100-sxm", *, model=None, precision="bf16-mixed", ep=1):
    return Plan(
        model=model or shapes.llama_3_8b(),
        cluster=replace(CLUSTER, node=replace(CLUSTER.node, gpu=load_gpu(gpu_id))),
        recipe=Recipe(seq_len=4096, precision=precision),
        layout=Layout(dp_shard=8, ep=ep),
        engine="native",
    )


@pytest.mark.parametrize(
    ("gpu_id", "ratios"),
    [
        ("h100-sxm", (0.90, 1.27)),
        ("b200-sxm", (0.90, 1.27)),
        ("h200-sxm", (0.90, 1.46)),
        ("gb200", (0.90, 1.46)),
        ("v100-sxm2-32", (0.90, 1.66)),
        ("mi300x", (0.90, 1.66)),
    ],
)
def test_the_less_is_known_of_a_part_the_wider_its_band(gpu_id, ratios):
    assert band_ratios(plan_on(gpu_id)) == ratios


def test_narrow_blocks_may_be_faster():
    narrow = read_model("llama-3.2-1b")
    assert narrow.hidden_size == 2048
    assert band_ratios(plan_on(model=narrow)) == (0.80, 1.27)
    assert band_ratios(plan_on(model=replace(narrow, hidden_size=2304))) == (0.90, 1.27)


def test_eight_bits_and_experts_widen_it_where_they_are_used():
    assert band_ratios(plan_on(precision="fp8-mixed")) == (0.70, 1.58)
    assert band_ratios(plan_on("a100-sxm-80", precision="fp8-mixed")) == (0.90, 1.46)
    mixture = read_model("mixtral-8x7b")
    assert band_ratios(plan_on(model=mixture)) == (0.90, 1.27)
    assert band_ratios(plan_on(model=mixture, ep=8)) == (0.60, 1.61)


@pytest.mark.parametrize(
    ("gpu_id", "is_doubted"),
    [("a100-sxm-80", False), ("h200-sxm", False), ("b200-sxm", False), ("mi300x", True), ("v100-sxm2-32", True)],
)
def test_attention_of_an_architecture_it_was_never_timed_on_may_take_half_or_twice_as_long(gpu_id, is_doubted):
    plan = replace(plan_on(gpu_id), engine="fsdp2")
    assert is_attention_doubted(plan) is is_doubted
    assert any("attention was not timed on" in text for text in plan_assumptions(plan)) is is_doubted
    time, _ = predict_time(plan)
    assert not is_attention_doubted(replace(plan, recipe=replace(plan.recipe, attention="eager")))
    low, high = band_ratios(plan)
    if is_doubted:
        assert time.step_low_s < 0.98 * low * time.step_s
        assert time.step_high_s > 1.02 * high * time.step_s


def test_cudnn_was_timed_on_b200():
    assert not is_attention_doubted(replace(plan_on("b200-sxm"), engine="megatron"))
    assert not is_attention_doubted(replace(plan_on("b200-sxm"), engine="native"))


def test_the_reasons_are_said():
    (said,) = band_sentences(plan_on("h200-sxm", precision="fp8-mixed"))
    assert said.startswith("the band of 0.70 to 1.58 of the step time")
    assert "scaled from another part" in said
    assert "8-bit products" in said
    assert not tuple(band_sentences(plan_on()))

"""Models that transformers builds, divided over tp and ep by what their families say of every weight."""

from dataclasses import replace

import pytest

from shardwise.errors import LayoutError
from shardwise.families import read_model
from shardwise.step.native_engine import DIVIDED_FAMILIES
from shardwise.train.divisible import require_divisible
from train.curves import assert_same
from train.models import LLAMA, make_job
from train.tiny_families import tiny_fields
from train.world_member import run

GEMMA3 = {**tiny_fields("gemma3_text"), "vocab_size": 256}
DEEPSEEK = {**tiny_fields("deepseek_v3"), "vocab_size": 256, "n_group": 2, "topk_group": 1}
TP, SP, EP = {"tp": 2}, {"tp": 2, "sequence_parallel": True}, {"dp_shard": 2, "ep": 2}
COMPOSITIONS = {
    "Gemma 3: tp": (2, GEMMA3, TP),
    "Gemma 3: sequence parallel x fsdp": (4, GEMMA3, {**SP, "dp_shard": 2}),
    "Gemma 3: more ranks than its two key-value heads": (4, GEMMA3, {**SP, "tp": 4}),
    "Gemma 3: one key-value head": (2, {**GEMMA3, "num_key_value_heads": 1}, TP),
    "DeepSeek-V3: tp": (2, DEEPSEEK, TP),
    "DeepSeek-V3: sequence parallel x fsdp": (4, DEEPSEEK, {**SP, "dp_shard": 2}),
    "DeepSeek-V3: ep": (2, DEEPSEEK, EP),
    "DeepSeek-V3: ep x tp": (4, DEEPSEEK, {**SP, **EP}),
    "DeepSeek-V3: ep x fsdp": (4, DEEPSEEK, {"dp_shard": 4, "ep": 2}),
    "DeepSeek-V3: without a low rank of queries": (2, {**DEEPSEEK, "q_lora_rank": None}, SP),
}
"""Processes, model and layout."""


@pytest.mark.parametrize(("model", "layout"), [(GEMMA3, SP), (DEEPSEEK, SP), (DEEPSEEK, EP)], ids=str)
def test_a_divided_family_trains_what_one_process_trains(worlds, curve, model, layout):
    assert_same(
        worlds[2].run(run, make_job(model=model, layout=layout, num_steps=3)), curve(1, model=model, num_steps=3)
    )


@pytest.mark.runs
@pytest.mark.parametrize("name", COMPOSITIONS)
def test_ten_steps_of_a_composition_are_those_of_one_process(worlds, curve, name):
    size, model, layout = COMPOSITIONS[name]
    expected = curve(1, model=model, num_steps=10)
    assert_same(worlds[size].run(run, make_job(model=model, layout=layout, num_steps=10)), expected)


@pytest.mark.runs
@pytest.mark.parametrize(
    "recipe",
    [
        {"recompute": "full"},
        {"recompute": "selective"},
        {"adapter": "lora", "lora_targets": "all-linear"},
        {"attention": "eager"},
    ],
    ids=str,
)
@pytest.mark.parametrize("model", [GEMMA3, DEEPSEEK], ids=["Gemma 3", "DeepSeek-V3"])
def test_a_recipe_changes_nothing_about_that(worlds, curve, model, recipe):
    expected = curve(1, model=model, num_steps=10, **recipe)
    assert_same(
        worlds[4].run(run, make_job(model=model, layout={**SP, "dp_shard": 2}, num_steps=10, **recipe)), expected
    )


@pytest.mark.families
@pytest.mark.parametrize("family", DIVIDED_FAMILIES)
def test_every_family_that_is_named_trains_divided_as_alone(worlds, family):
    model = {**tiny_fields(family), "vocab_size": 256}
    alone = worlds[1].run(run, by_transformers(make_job(model=model, num_steps=3)))[0]
    for layout in [SP, {**SP, "tp": 4}, *([EP] if read_model(model).is_moe else [])]:
        size = layout.get("tp", 2)
        assert_same(worlds[size].run(run, by_transformers(make_job(model=model, layout=layout, num_steps=3))), alone)


def by_transformers(job):
    """The job, with a model that transformers builds also where our own decoder could."""
    return replace(job, implementation="transformers")


@pytest.mark.parametrize("axis", ["cp", "pp"])
def test_an_axis_that_divides_no_family_is_refused_by_name(axis):
    job = make_job(model=GEMMA3, layout={axis: 2})
    with pytest.raises(LayoutError, match=f"{axis} divide the inside of a model, .* gemma3_text") as refused:
        require_divisible(job)
    assert refused.value.fix == f"set {axis} to 1 and dp_shard as many times larger"


def test_a_vocabulary_of_uneven_rows_is_refused_before_anything_starts():
    job = make_job(model={**LLAMA, "vocab_size": 255}, layout=TP)
    with pytest.raises(LayoutError, match="tp=2 cannot divide vocab_size=255"):
        require_divisible(job)


@pytest.mark.runs
def test_capped_logits_are_not_divided(worlds):
    job = make_job(model={**GEMMA3, "final_logit_softcapping": 30.0}, layout=TP)
    with pytest.raises(AssertionError, match="does more to its logits than a product with the head"):
        worlds[2].run(run, job)


@pytest.mark.runs
@pytest.mark.parametrize(
    ("changed", "size", "layout"),
    [
        ({"num_key_value_heads": 1}, 2, SP),
        ({"num_key_value_heads": 2}, 4, {**SP, "tp": 4}),
        ({"attention_bias": True}, 2, TP),
        ({"attention_bias": True}, 2, SP),
    ],
    ids=str,
)
def test_our_decoder_trains_the_same_with_copied_heads_and_with_biases(worlds, curve, changed, size, layout):
    """The bias of attention's output was once added by every tensor-parallel rank."""
    model = {**LLAMA, "num_hidden_layers": 2, **changed}
    expected = curve(1, model=model, num_steps=10)
    assert_same(worlds[size].run(run, make_job(model=model, layout=layout, num_steps=10)), expected)

"""The sets of modules that a search recomputes: few, each freeing more than the one before, none that blocks beat."""

from dataclasses import replace

import pytest

from shardwise.layout import Layout
from shardwise.predict import predict
from shardwise.recipe import Recipe
from shardwise.search import IntRange, SearchBounds, search
from shardwise.search.candidates import MODULES, modules_of
from shardwise.search.module_ladder import module_ladder
from shardwise.search.space import Space

FEW = {"dp_replicate": IntRange(low=1, high=1), "cp": IntRange(low=1, high=1)}


def sets_of(question, *, beside_blocks=True):
    return [modules_of(bits) for bits in module_ladder(question, beside_blocks=beside_blocks)]


@pytest.mark.parametrize("engine", ["hai-llm", "megatron"])
def test_the_modules_that_deepseek_recomputed_are_a_rung(make_question, engine):
    """arXiv:2412.19437, section 3.2.3: norms and MLA's up-projections; section 3.3.3: the activation of experts."""
    question = make_question(model="deepseek-v3-671b", cluster="256xhgx-h800", engine=engine, precision="fp8-mixed")
    assert ("mla_up_proj", "layernorm", "moe_act") in sets_of(question)


@pytest.mark.parametrize("model", ["deepseek-v2", "qwen3-30b-a3b", "kimi-k2", "gpt-oss-120b", "llama-3.1-8b"])
@pytest.mark.parametrize("precision", ["bf16-mixed", "fp8-mixed"])
def test_every_rung_needs_less_memory_and_more_time(make_question, model, precision):
    question = make_question(model=model, cluster="8xdgx-h100", engine="megatron", precision=precision)
    layout = Layout(dp_shard=64, ep=8 if question.model.is_moe else 1, zero_stage=1)
    sets = sets_of(question)
    assert 1 <= len(sets) <= len(MODULES)
    plans = [replace(question, layout=layout)]
    for modules in sets:
        recipe = replace(question.recipe, recompute="selective", recompute_modules=modules)
        plans.append(replace(question, layout=layout, recipe=recipe))
    found = [predict(plan) for plan in plans]
    needed = [one.memory.needed_bytes for one in found]
    assert needed == sorted(needed, reverse=True)
    steps = [one.time.step_s for one in found]
    assert steps == sorted(steps)


def test_no_set_names_a_part_of_another_module_in_it(make_question):
    question = make_question(model="deepseek-v2", cluster="8xdgx-h100", engine="megatron")
    *_, last = sets_of(question)
    assert "moe" in last
    assert not {"moe_act", "shared_experts"}.intersection(last)


def test_sets_that_whole_blocks_beat_are_left_out(make_question):
    """A feed-forward of 405B takes 25 ms for a GiB, whole blocks 24."""
    question = make_question(model="llama-3.1-405b", cluster="2048xdgx-h100", engine="megatron", seq_len=8192)
    assert sets_of(question) == []
    assert sets_of(question, beside_blocks=False) == [("mlp",)]


@pytest.mark.parametrize(
    ("engine", "asked", "bounds"),
    [
        ("torchtitan", {}, {}),
        ("megatron", {"recompute_modules": ("moe",)}, {}),
        ("megatron", {"recompute_layers": 2}, {}),
        ("megatron", {}, {"recompute": ("none", "full")}),
        ("megatron", {}, {"recompute": ("selective",)}),
    ],
)
def test_sets_are_searched_only_where_the_engine_and_the_question_leave_them_open(make_question, engine, asked, bounds):
    question = make_question(model="qwen3-30b-a3b", engine=engine, **asked)
    space = Space(question=question, bounds=SearchBounds(**bounds))
    assert space.module_sets == ()
    assert Space(question=make_question(model="qwen3-30b-a3b", engine="megatron"), bounds=SearchBounds()).module_sets


def test_a_search_recomputes_modules_where_that_is_faster_than_whole_blocks(make_question):
    """DeepSeek-V2 on 64 H100: one pipeline that whole blocks make 13 % slower."""
    question = make_question(model="deepseek-v2", cluster="8xdgx-h100")
    asked = {"model": question.model, "cluster": question.cluster, "engine": "megatron"}
    recipe = Recipe(seq_len=4096, global_batch_size=512, compile=False)
    four = IntRange(low=4, high=4)
    kept = SearchBounds(tp=four, pp=four, ep=four, offload=("none",), activation_offload=False, **FEW)
    by_module = search(**asked, recipe=recipe, bounds=kept)
    whole = search(**asked, recipe=recipe, bounds=replace(kept, recompute=("none", "full")))
    best, other = (min(one.pareto, key=lambda ranked: ranked.prediction.time.step_s) for one in (by_module, whole))
    assert best.plan.recipe.recompute_modules == ("mla_up_proj", "layernorm", "moe_act")
    assert best.prediction.time.step_s < 0.95 * other.prediction.time.step_s

"""The fewest more recomputed blocks that bring the memory band of a plan inside the device."""

from dataclasses import replace

import pytest

from shardwise.layout import Layout
from shardwise.predict.memory import predict_memory
from shardwise.search import IntRange, SearchBounds, search
from shardwise.search.candidates import modules_of
from shardwise.search.safe_recompute import safely_recomputed
from shardwise.search.space import Space

MODES = ("selective", "full")


@pytest.fixture(scope="module")
def edge(make_question):
    """One sequence of 8,192 tokens a rank, not compiled: 78.6 GiB fit, and the band around them does not."""
    question = make_question(model="llama-3.1-8b", cluster="8xh100-sxm", seq_len=8192, compile=False)
    plan = replace(question, layout=Layout(dp_shard=8, zero_stage=2))
    memory = predict_memory(plan)
    assert memory.fits_device
    assert memory.is_borderline
    return plan, memory


@pytest.mark.parametrize("mode", MODES)
def test_one_block_less_is_not_safe(edge, mode):
    every, (plan, memory) = safely_recomputed(*edge, modes=(mode,))
    assert (every[0].recipe.recompute, every[0].recipe.recompute_layers) == (mode, None)
    assert plan.recipe.recompute == mode
    assert memory.fits_device
    assert not memory.is_borderline
    layers = plan.recipe.recompute_layers - 1
    fewer = replace(plan, recipe=replace(plan.recipe, recompute_layers=layers)) if layers else edge[0]
    assert predict_memory(fewer).is_borderline


def test_nothing_but_recomputation_changes(edge):
    for plan, _ in safely_recomputed(*edge, modes=MODES):
        assert plan.layout == edge[0].layout
        assert replace(plan.recipe, recompute="none", recompute_layers=None) == edge[0].recipe


def test_no_plan_is_made_to_keep_more(edge, make_question):
    plan = replace(edge[0], recipe=replace(edge[0].recipe, recompute="full", recompute_layers=2))
    assert {made.recipe.recompute for made, _ in safely_recomputed(plan, edge[1], modes=MODES)} == {"full"}
    every = replace(plan, recipe=replace(plan.recipe, recompute_layers=None))
    assert list(safely_recomputed(every, edge[1], modes=MODES)) == []


def test_without_a_mode_nothing_is_tried(edge):
    assert list(safely_recomputed(*edge, modes=())) == []


def test_of_sets_of_modules_the_first_that_is_safe_is_taken(make_question):
    """Qwen3-30B on 16 H100, EP 16: 73.8 GiB without norms, and the band reaches beyond the device."""
    asked = {"precision": "fp8-mixed", "global_batch_size": 1024, "micro_batch_size": 2, "recompute": "selective"}
    question = make_question(model="qwen3-30b-a3b", cluster="2xdgx-h100", engine="megatron", **asked)
    space = Space(question=question, bounds=SearchBounds())
    sets = [modules_of(bits) for bits in space.module_sets]
    layout = Layout(dp_shard=16, ep=16, zero_stage=2)
    plan = replace(question, layout=layout, recipe=replace(question.recipe, recompute_modules=sets[0]))
    memory = predict_memory(plan)
    assert memory.fits_device
    assert memory.is_borderline
    [(safe, _)] = safely_recomputed(plan, memory, modes=(), module_sets=sets)
    assert safe.recipe.recompute_modules == sets[1] == ("layernorm", "moe_act")
    assert list(safely_recomputed(plan, memory, modes=(), module_sets=sets[:1])) == []
    (whole, _), *_ = safely_recomputed(plan, memory, modes=("full",), module_sets=())
    assert (whole.recipe.recompute, whole.recipe.recompute_modules) == ("full", None)


def test_a_search_offers_the_safe_variant_of_a_fast_layout(make_question):
    """Full recomputation of everything takes a quarter longer than of the part that is enough, which pays its price."""
    question = make_question(model="llama-3.1-8b", cluster="8xh100-sxm", seq_len=8192, compile=False)
    asked = {"model": question.model, "cluster": question.cluster, "recipe": question.recipe}
    one = IntRange(low=1, high=1)
    kept = SearchBounds(tp=one, cp=one, pp=one, offload=("none",), activation_offload=False)
    one_size = replace(kept, micro_batch_size=one, recompute=("none", "full"), zero_stage=(2,))
    best = search(**asked, bounds=one_size).plans[0]
    assert not best.prediction.memory.is_borderline
    assert (best.plan.recipe.recompute, best.plan.recipe.recompute_layers is None) == ("full", False)

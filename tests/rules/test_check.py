"""Checking whole plans: which error is raised, how many more there are, and how much work it is."""

import pytest

from call_counts import count_calls
from rules.samples import llama_8b, make_plan
from shapes import llama_3_70b
from shardwise.errors import LayoutError, RecipeError
from shardwise.layout import Layout
from shardwise.rules import find_errors, find_refusals, require_valid


def test_the_first_layout_error_is_raised_and_the_others_are_counted():
    plan = make_plan(num_gpus=64, layout=Layout(dp_shard=4, tp=7))
    with pytest.raises(LayoutError) as caught:
        require_valid(plan)
    assert caught.value.code == "layout-world-size"
    assert caught.value.fix == "set tp=4 and dp_shard=16"
    assert caught.value.message == (
        "dp_shard=4 with tp=7 places 28 GPUs, but the cluster has 64 (3 more: layout-heads-over-tp, "
        "layout-kv-heads-over-tp, layout-hidden-over-tp)"
    )


def test_a_recipe_error_is_a_recipe_error():
    with pytest.raises(RecipeError) as caught:
        require_valid(make_plan(layout=Layout(dp_shard=3), global_batch_size=4))
    assert caught.value.code == "recipe-batch-arithmetic"


def test_warnings_do_not_raise():
    plan = make_plan(llama_8b(num_layers=30), layout=Layout(pp=4))
    assert [item.severity for item in find_refusals(plan)] == ["warning"]
    require_valid(plan)


def test_no_rule_is_evaluated_while_a_degree_is_zero():
    assert [item.rule for item in find_refusals(make_plan(num_gpus=1, layout=Layout(tp=0, pp=0)))] == [
        "layout-degree-range"
    ]


def test_a_sound_plan_has_nothing_to_say():
    plan = make_plan(llama_3_70b(), layout=Layout(dp_shard=4, tp=8, pp=2, sequence_parallel=True), global_batch_size=64)
    assert find_refusals(plan) == ()


def test_a_search_can_ask_for_many_layouts_a_second():
    """A tenth of a prediction's cheapest: 8 microseconds where it was measured."""
    layout = Layout(dp_shard=4, tp=8, pp=2, sequence_parallel=True)
    plan = make_plan(llama_3_70b(), layout=layout, global_batch_size=64)
    assert find_errors(plan) == ()
    assert count_calls(lambda: find_errors(plan)) < 300


def test_recomputing_no_layer_is_refused_in_favour_of_recomputing_nothing():
    plan = make_plan(recompute="full", recompute_layers=0)
    with pytest.raises(RecipeError) as caught:
        require_valid(plan)
    assert caught.value.message == "recompute_layers=0 recomputes nothing, and recompute=full asks for it"
    assert caught.value.fix == "set recompute=none and recompute_layers=null"

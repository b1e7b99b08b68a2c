"""Fewer blocks beside the head: which spreads are tried, and that a search finds and keeps them."""

from dataclasses import replace

import pytest

from shardwise.errors import LayoutError
from shardwise.families import read_model
from shardwise.layout import Layout
from shardwise.predict import predict
from shardwise.search import IntRange, SearchBounds, parse_counts, search
from shardwise.search.uneven_stages import head_blocks, uneven_stages

FOUR = IntRange(low=4, high=4)


@pytest.mark.parametrize(
    ("model", "blocks"),
    [
        # 128,256 * 4,096 over 6.98e9 weights in 32 blocks.
        ("llama-3.1-8b", 2.41),
        # 128,256 * 16,384 over 401.6e9 weights in 126 blocks.
        ("llama-3.1-405b", 0.66),
    ],
)
def test_a_head_weighs_its_matrix_over_that_of_a_block(model, blocks):
    assert head_blocks(read_model(model)) == pytest.approx(blocks, abs=0.005)


def test_the_spread_with_the_lightest_heaviest_stage_comes_first(make_question):
    plan = replace(make_question(), layout=Layout(pp=4, dp_shard=2))
    assert next(uneven_stages(plan)) == (8, 9, 9, 6)


def test_chunks_of_a_stage_hold_equally_many(make_question):
    plan = replace(make_question(), layout=Layout(pp=2, vpp=2, schedule="interleaved", dp_shard=4))
    spreads = list(uneven_stages(plan))
    assert spreads == [(18, 14)]
    assert all(sum(spread) == 32 and all(count % 2 == 0 for count in spread) for spread in spreads)


def test_a_head_lighter_than_a_block_moves_nothing(make_question):
    plan = replace(make_question(model="llama-3.1-405b"), layout=Layout(pp=16, tp=8))
    assert list(uneven_stages(plan)) == []


def test_stages_that_are_named_stay_as_they_are(make_question):
    plan = replace(make_question(), layout=Layout(pp=4, dp_shard=2, stage_layers=(8, 8, 8, 8)))
    assert list(uneven_stages(plan)) == []


def test_a_search_finds_a_spread_that_is_faster_than_the_even_one(make_question):
    question = make_question(cluster="16xh100-sxm", engine="megatron")
    bounds = SearchBounds(pp=FOUR, cp=IntRange(low=1, high=1), schedule=("1f1b",))
    result = search(
        model=question.model, cluster=question.cluster, recipe=question.recipe, engine="megatron", bounds=bounds
    )
    best = result.plans[0]
    assert best.plan.layout.stage_layers in ((8, 9, 9, 6), (9, 9, 9, 5))
    even = replace(best.plan, layout=replace(best.plan.layout, stage_layers=None))
    assert predict(even).time.step_s > 1.01 * best.prediction.time.step_s
    space = result.space
    assert space.layouts_considered == (
        space.layouts_invalid + space.layouts_too_big + space.layouts_slower + space.layouts_predicted
    )


def test_stages_that_are_pinned_are_the_only_ones(make_question):
    question = make_question(cluster="16xh100-sxm")
    bounds = SearchBounds(stage_layers=(9, 9, 8, 6), cp=IntRange(low=1, high=1))
    result = search(model=question.model, cluster=question.cluster, recipe=question.recipe, bounds=bounds)
    assert {ranked.plan.layout.stage_layers for ranked in result.plans} == {(9, 9, 8, 6)}
    assert {ranked.plan.layout.pp for ranked in result.plans} == {4}


def test_stages_that_hold_other_layers_than_the_model_are_refused(make_question):
    question = make_question(cluster="16xh100-sxm")
    with pytest.raises(LayoutError) as refused:
        search(
            model=question.model,
            cluster=question.cluster,
            recipe=question.recipe,
            bounds=SearchBounds(stage_layers=(9, 9, 8, 7)),
        )
    assert refused.value.message == "stage_layers sums to 33 layers, but llama-3.1-8b has 32"


@pytest.mark.parametrize("text", ["9,8,,7", "9 x 4", "0,32", ""])
def test_what_is_no_list_of_counts_is_refused(text):
    with pytest.raises(LayoutError) as refused:
        parse_counts(text, axis="stage_layers")
    assert refused.value.code == "search-bounds"

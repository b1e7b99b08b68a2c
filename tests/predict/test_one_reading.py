"""One measured run says all about its like, and less the more differs."""

from dataclasses import replace

import pytest

import shapes
from shardwise.catalog import read_cluster
from shardwise.layout import Layout
from shardwise.plan import Plan
from shardwise.predict.one_reading import carried_ratio, carried_share, plan_sizes
from shardwise.recipe import Recipe

PLAN = Plan(
    model=shapes.llama_3_8b(),
    cluster=read_cluster("2 x dgx-h100"),
    recipe=Recipe(seq_len=8192),
    layout=Layout(dp_shard=16),
    engine="native",
)
SIZES = plan_sizes(PLAN)


def test_the_same_plan_carries_its_ratio_whole():
    assert carried_ratio(1.37, SIZES, plan_sizes(PLAN)) == pytest.approx(1.37)


@pytest.mark.parametrize(
    ("other", "share"),
    [
        (replace(PLAN, recipe=replace(PLAN.recipe, micro_batch_size=2)), 0.9048),
        (replace(PLAN, recipe=replace(PLAN.recipe, precision="fp8-mixed")), 0.9048),
        (replace(PLAN, recipe=replace(PLAN.recipe, recompute="full")), 0.9048),
        (replace(PLAN, layout=Layout(dp_shard=4, tp=4)), 0.8187),
        (replace(PLAN, cluster=read_cluster("4 x dgx-h100"), layout=Layout(dp_shard=32)), 0.9704),
    ],
    ids=["micro-batch", "precision", "recomputation", "tensor parallel", "twice the ranks"],
)
def test_what_differs_fades_it(other, share):
    assert carried_share(SIZES, plan_sizes(other)) == pytest.approx(share, abs=1e-4)


def test_it_matters_not_which_of_two_was_measured():
    other = plan_sizes(replace(PLAN, layout=Layout(dp_shard=2, tp=8)))
    assert carried_share(SIZES, other) == carried_share(other, SIZES)


@pytest.mark.parametrize("ratio", [0.6, 1.0, 1.9])
def test_a_ratio_fades_towards_one_and_never_past_it(ratio):
    other = plan_sizes(replace(PLAN, layout=Layout(dp_shard=2, tp=8), recipe=replace(PLAN.recipe, micro_batch_size=8)))
    carried = carried_ratio(ratio, SIZES, other)
    assert min(ratio, 1.0) <= carried <= max(ratio, 1.0)


def test_context_parallelism_counts_by_the_tokens_it_leaves_a_rank():
    divided = replace(PLAN, recipe=replace(PLAN.recipe, seq_len=16384), layout=Layout(dp_shard=8, cp=2))
    assert plan_sizes(divided).sizes[1] == SIZES.sizes[1]

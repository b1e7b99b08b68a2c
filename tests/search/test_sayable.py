"""What a search recommends for an engine can be written for a tool that runs it."""

import pytest

from shardwise.catalog import read_cluster
from shardwise.exchange.export import TARGETS, InexpressibleError, export_plan
from shardwise.families import read_model
from shardwise.recipe import Recipe
from shardwise.search import IntRange, SearchBounds, search

QUESTIONS = (
    ("llama-3.1-8b", "8xh100-sxm", Recipe(seq_len=8192, global_batch_size=64, compile=False)),
    ("llama-3.1-70b", "32xa100-sxm-80", Recipe(seq_len=4096, global_batch_size=256, compile=False)),
)


def is_sayable(plan):
    """Whether one of the tools of the plan's engine can be told it."""
    for name in (name for name, target in TARGETS.items() if target.engine == plan.engine):
        try:
            return bool(export_plan(plan, to=name))
        except InexpressibleError:
            continue
    return False


@pytest.mark.parametrize("engine", ["torchtitan", "megatron", "deepspeed", "accelerate"])
@pytest.mark.parametrize(("model", "cluster", "recipe"), QUESTIONS)
def test_every_recommended_plan_can_be_exported(engine, model, cluster, recipe):
    found = search(model=read_model(model), cluster=read_cluster(cluster), recipe=recipe, engine=engine)
    assert found.plans
    assert [ranked.plan.layout for ranked in found.plans[:5] if not is_sayable(ranked.plan)] == []


def test_megatron_fsdp_is_put_beside_pipelines_only_where_it_is_asked_for():
    """Its documentation names tensor, context and expert parallelism beside it; pipelines are run with ZeRO-1."""
    asked = {"model": read_model("llama-3.1-8b"), "cluster": read_cluster("8xh100-sxm"), "engine": "megatron"}
    recipe, pipelines = Recipe(seq_len=8192, global_batch_size=64, compile=False), IntRange(low=2, high=8)
    found = search(**asked, recipe=recipe, bounds=SearchBounds(pp=pipelines, max_plans=20))
    assert {ranked.plan.layout.zero_stage for ranked in found.plans} <= {0, 1}
    sharded = search(**asked, recipe=recipe, bounds=SearchBounds(pp=pipelines, zero_stage=(2,), max_plans=1))
    assert sharded.plans[0].plan.layout.zero_stage == 2

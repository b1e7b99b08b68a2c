"""Every hideable collective of data parallelism lies in the pass that is said to time it, and adds something to it."""

from typing import get_args

import pytest

from shardwise.catalog import read_cluster
from shardwise.engines.table import EngineName
from shardwise.families import read_model
from shardwise.layout import Layout
from shardwise.plan import Plan
from shardwise.predict.stage_passes import exposed_calls, stage_passes
from shardwise.predict.stage_time import StageClock
from shardwise.predict.stage_work import stage_work
from shardwise.recipe import Recipe
from shardwise.render.names import layout_text
from shardwise.rules import find_errors
from shardwise.step.layer_placement import pipeline_stages
from shardwise.step.stage_context import StageContext

LAYOUTS = [
    *(Layout(dp_shard=16, zero_stage=stage) for stage in (0, 1, 2, 3)),
    *(Layout(dp_shard=8, dp_replicate=2, zero_stage=stage) for stage in (1, 2, 3)),
    *(Layout(dp_shard=8, tp=2, zero_stage=stage, sequence_parallel=True) for stage in (0, 1, 2, 3)),
    *(Layout(dp_shard=8, pp=2, zero_stage=stage) for stage in (0, 1, 2)),
    *(Layout(dp_shard=4, ep=4, dp_replicate=4, zero_stage=stage) for stage in (0, 1, 2)),
    *(Layout(dp_shard=4, pp=4, zero_stage=stage, schedule="dualpipe") for stage in (0, 1)),
    Layout(dp_replicate=16, dp_shard=1),
]


def plans():
    """Every layout with every engine that runs it."""
    cluster, recipe = read_cluster("16xh100-sxm"), Recipe(seq_len=2048, global_batch_size=32, compile=False)
    for engine in get_args(EngineName):
        for layout in LAYOUTS:
            model = read_model("qwen3-30b-a3b" if layout.ep > 1 else "llama-3.2-3b")
            plan = Plan(model=model, cluster=cluster, recipe=recipe, layout=layout, engine=engine)
            if not find_errors(plan):
                yield plan


def timed_passes(plan):
    (stage, *_) = pipeline_stages(model=plan.model, layout=plan.layout)
    context, clock = StageContext(plan=plan, stage=stage), StageClock(plan)
    calls = clock.timed_calls(context)
    work = stage_work(context, clock.work_book(context), calls)
    data = [timed for timed in calls if timed.collective.axis in ("dp_shard", "dp_replicate")]
    return data, list(stage_passes(context, data, work))


@pytest.mark.parametrize("plan", list(plans()), ids=lambda plan: f"{plan.engine} {layout_text(plan.layout)}")
def test_passes_hold_the_calls_they_time(plan):
    data, passes = timed_passes(plan)
    hideable = {timed.collective.name for timed in data if timed.collective.is_overlappable}
    assert hideable <= set().union(*(one.names for one in passes))
    for one in passes:
        assert sum(call.exposed_s for call in exposed_calls(one)) > 0

"""Blocks of real models: every operation and every collective of the inventory has its place."""

from statistics import mean

import pytest

import shapes
from shardwise.catalog import read_cluster
from shardwise.engines.table import engine_profile
from shardwise.families import read_model
from shardwise.layout import Layout
from shardwise.plan import Plan
from shardwise.predict.communication import collective_time_s
from shardwise.predict.group_placement import place_group
from shardwise.predict.stage_time import StageClock
from shardwise.predict.time import predict_time
from shardwise.recipe import Recipe
from shardwise.step.collectives import block_collectives
from shardwise.step.layer_placement import pipeline_stages
from shardwise.step.stage_context import StageContext

MODELS = ("llama-3.1-8b", "gpt2", "gpt-neox-20b", "mixtral-8x7b", "deepseek-v3-671b", "gemma-2-9b")
LAYOUTS = {
    "tensor": Layout(tp=4, zero_stage=0),
    "sequence": Layout(tp=4, sequence_parallel=True, zero_stage=0),
    "context": Layout(cp=4, zero_stage=0),
    "all": Layout(tp=2, cp=2, dp_shard=2, sequence_parallel=True, zero_stage=0),
}


def book_of(plan):
    stage = pipeline_stages(model=plan.model, layout=plan.layout)[0]
    context = StageContext(plan=plan, stage=stage)
    return context, StageClock(plan).work_book(context)


def plan_of(model, layout, engine, **recipe):
    recipe = Recipe(**({"seq_len": 1024, "recompute": "full"} | recipe))
    return Plan(
        model=read_model(model), cluster=read_cluster("8xh100-sxm"), recipe=recipe, layout=layout, engine=engine
    )


def alone_s(call, plan):
    placement = place_group(
        cluster=plan.cluster,
        size=call.group_size,
        stride=call.stride,
        has_in_switch_reduction=engine_profile(plan.engine).has_in_switch_reduction,
    )
    return collective_time_s(call, placement=placement)


@pytest.mark.parametrize("engine", ["native", "megatron", "deepspeed"])
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("model", MODELS)
def test_nothing_of_a_block_is_lost_or_counted_twice(model, layout, engine):
    plan = plan_of(model, layout, engine)
    context, book = book_of(plan)
    for layer, _ in context.layer_runs:
        times = book.block_times[id(layer)]
        calls = block_collectives(layer, context)
        for phase, run in (("forward", times.forward), ("backward", times.backward), ("recompute", times.recompute)):
            communicated_s = sum(task.duration_s for task in run.tasks if task.stream != "compute")
            expected_s = sum(call.count * alone_s(call, plan) for call in calls if call.phase == phase)
            assert communicated_s == pytest.approx(expected_s)
            exposed_s = sum(call.exposed_s for call in run.exposed)
            computed_s = sum(task.duration_s for task in run.tasks if task.stream == "compute")
            assert run.duration_s - exposed_s == pytest.approx(computed_s)


def test_an_exchange_under_another_micro_batch_has_no_place_in_the_block():
    layout = Layout(pp=4, ep=2, dp_shard=2, schedule="dualpipev", zero_stage=1)
    plan = plan_of("mixtral-8x7b", layout, "megatron", global_batch_size=32)
    _, book = book_of(plan)
    assert all(task.stream != "ep" for times in book.block_times.values() for task in times.forward.tasks)


def test_exchanges_of_both_directions_hide_under_the_computation_of_both():
    """DualPipe pairs a chunk that goes forward with one that goes backward, but while it fills and drains.

    DeepSeek-V3's exchange over eight servers takes longer than a forward pass computes, and less than both passes. Of
    120 forwards of a rank 16 to 23 have no partner; the others' exchanges take multiprocessors from computation.
    """
    layout = Layout(pp=16, ep=64, dp_shard=128, schedule="dualpipe", zero_stage=1)
    recipe = Recipe(seq_len=4096, global_batch_size=15360, precision="fp8-mixed", recompute="selective")
    cluster, model = read_cluster("256xhgx-h800"), read_model("deepseek-v3-671b")
    plan = Plan(model=model, cluster=cluster, recipe=recipe, layout=layout, engine="hai-llm")
    time = predict_time(plan)[0]
    exchanges = [entry for entry in time.communication if entry.name in ("expert dispatch", "expert combine")]
    total_s, exposed_s = (sum(getattr(one, name) for one in exchanges) for name in ("total_s", "exposed_s"))
    parts = {entry.component: entry.duration_s for entry in time.components}
    assert parts["forward"] < total_s / 2 < total_s < parts["forward"] + parts["backward"]
    unpaired = (mean(3 * 8 - 1 - near for near in range(8)) + 1 / 8) / 120  # the rank at the turn has one more
    assert exposed_s / total_s == pytest.approx(unpaired + (1 - unpaired) * (132 / 112 - 1), abs=1e-9)


def sequence_exposed_s(engine, *, is_async):
    layout = Layout(tp=8, zero_stage=0, sequence_parallel=True, async_tensor_parallel=is_async)
    recipe = Recipe(seq_len=8192, micro_batch_size=4)
    plan = Plan(model=shapes.llama_3_8b(4), cluster=shapes.cluster(8), recipe=recipe, layout=layout, engine=engine)
    communication = predict_time(plan)[0].communication
    return sum(entry.exposed_s for entry in communication if entry.name.startswith("sequence parallel"))


def test_pieces_hide_part_of_the_communication_and_never_all_of_it():
    assert 0 < sequence_exposed_s("native", is_async=True) < sequence_exposed_s("native", is_async=False)


def test_megatron_hides_more_of_a_backward_than_torch():
    assert sequence_exposed_s("megatron", is_async=False) < sequence_exposed_s("native", is_async=False)

"""The step as a whole: what its stages wait for each other at."""

import pytest

import shapes
from shardwise.catalog import read_cluster
from shardwise.layout import Layout
from shardwise.plan import Plan
from shardwise.predict.pipeline_time import gathers_at_step_begin
from shardwise.predict.stage_time import is_before_update
from shardwise.predict.step_parts import step_parts
from shardwise.predict.timeline import predict_timeline
from shardwise.recipe import Recipe
from shardwise.simulate.contention import run_contended
from shardwise.simulate.engine import Task


def plan_of(layout, *, engine="megatron", nodes=None, **recipe):
    return Plan(
        model=shapes.llama_3_8b(),
        cluster=read_cluster(f"{nodes or max(1, layout.world_size // 8)} x dgx-h100"),
        recipe=Recipe(**({"seq_len": 8192, "global_batch_size": 64} | recipe)),
        layout=layout,
        engine=engine,
    )


PIPELINES = {
    "1f1b": plan_of(Layout(pp=4, dp_shard=8, zero_stage=1)),
    "gpipe": plan_of(Layout(pp=4, dp_shard=8, schedule="gpipe"), engine="torchtitan"),
    "interleaved": plan_of(Layout(pp=4, vpp=2, dp_shard=8, zero_stage=1, schedule="interleaved")),
    "zbv": plan_of(Layout(pp=4, dp_shard=8, schedule="zbv"), engine="torchtitan"),
    "offloaded": plan_of(Layout(pp=4, dp_shard=8, zero_stage=1), engine="deepspeed", offload="optimizer"),
}


@pytest.mark.parametrize("plan", PIPELINES.values(), ids=PIPELINES.keys())
def test_no_rank_updates_before_all_have_reduced_and_know_the_norm(plan):
    """The barrier as a program of the event engine: the last sum of the norm waits for every stage."""
    parts = step_parts(plan)
    tasks = []
    for time, end_s in zip(parts.times, parts.waits.ends_s, strict=True):
        stream = f"stage {time.stage}"
        for name, duration_s in (("passes", end_s), ("reductions", time.reductions_s), ("norm", time.before_norm_s)):
            depends_on = () if name == "passes" else (len(tasks) - 1,)
            tasks.append(Task(name=name, stream=stream, duration_s=duration_s, depends_on=depends_on))
    norms = tuple(position for position, task in enumerate(tasks) if task.name == "norm")
    for time, offload in zip(parts.times, parts.offloads, strict=True):
        duration_s = time.update_s + offload.total_s
        tasks.append(Task(name="update", stream=f"stage {time.stage}", duration_s=duration_s, depends_on=norms))
    assert run_contended(tasks, ()).makespan_s == pytest.approx(parts.step_s, rel=1e-12)


@pytest.mark.parametrize("plan", PIPELINES.values(), ids=PIPELINES.keys())
def test_drawn_updates_start_behind_every_reduction(plan):
    ranks = predict_timeline(plan).ranks
    reduced_s = max(
        span.end_s
        for rank in ranks
        for span in rank.spans
        if span.name == "gradient norm" or span.category in ("reduce_scatter", "all_reduce")
    )
    updates = [span for rank in ranks for span in rank.spans if span.name == "optimizer"]
    hosts = [span for rank in ranks for span in rank.spans if span.name == "update on the host"]
    assert len(updates) == len(ranks)
    assert min(span.start_s for span in updates + hosts) >= reduced_s - 1e-9


def test_the_norm_is_between_the_last_reduction_and_the_update_on_one_stage_too():
    """Eight bytes of a norm over the ranks of a node cost the latency of an all-reduce, and 4 bytes a parameter."""
    parts = step_parts(plan_of(Layout(dp_shard=8), engine="native", global_batch_size=8))
    (time,) = parts.times
    sums = [call for call in time.collectives if is_before_update(call.collective)]
    assert [call.collective.name for call in sums] == ["gradient norm"]
    assert time.before_norm_s == pytest.approx(time.norm_s + sums[0].total_s)
    assert parts.waits.updates_start_s == pytest.approx((parts.step_s - time.update_s,))
    assert 0 < time.norm_s < time.compute.optimizer_s / 4


def test_gathers_of_later_stages_hide_while_the_pipeline_fills():
    """Megatron gathers on all stages at once: only the first has nothing to do meanwhile."""
    plan = PIPELINES["1f1b"]
    assert gathers_at_step_begin(plan)
    parts = step_parts(plan)
    alone = [time.gathers_s for time in parts.times]
    assert min(alone) > 0
    assert alone[1] < parts.times[0].chunks[0].forward_s
    assert parts.waits.gathers_s == pytest.approx(alone[0], rel=1e-9)


def test_gathers_issued_behind_the_input_delay_stage_after_stage():
    """torch's schedules of one chunk leave gathers to FSDP, which issues them when the input is there."""
    plan = PIPELINES["gpipe"]
    assert not gathers_at_step_begin(plan)
    parts = step_parts(plan)
    assert parts.waits.gathers_s == pytest.approx(sum(time.gathers_s for time in parts.times), rel=1e-9)


def test_the_longest_gather_stands_before_a_pipeline_that_has_no_order():
    """Three micro-batches in rounds of two: Megatron refuses them, and nothing hides what their stages gather."""
    plan = plan_of(Layout(pp=2, vpp=2, dp_shard=8, zero_stage=1, schedule="interleaved"), global_batch_size=24)
    parts = step_parts(plan)
    free = step_parts(plan, is_free=lambda call: call.kind == "all_gather")
    longest_s = max(time.gathers_s for time in parts.times)
    assert 0 < longest_s == parts.waits.gathers_s
    assert parts.waits.ends_s[0] - free.waits.ends_s[0] == pytest.approx(longest_s, rel=1e-9)


def test_reductions_of_later_stages_hide_while_the_pipeline_drains():
    """The last stage has three backwards of others to reduce its gradients beside, the first none."""
    parts = step_parts(PIPELINES["gpipe"])
    first, last = parts.waits.ends_s[0], parts.waits.ends_s[-1]
    backward_s = [chunk.backward_s for chunk in parts.chunks]
    assert first - last == pytest.approx(sum(backward_s[:-1]), rel=0.35)
    assert parts.waits.reductions_s <= parts.times[0].reductions_s * 1.01


def test_without_data_parallelism_nothing_is_gathered_or_reduced():
    parts = step_parts(plan_of(Layout(pp=4, tp=2, zero_stage=0), global_batch_size=16))
    assert (parts.waits.gathers_s, parts.waits.reductions_s) == (0.0, 0.0)


def test_a_plan_that_does_not_clip_has_no_barrier():
    """Each stage updates behind its own reductions: the last one while the first still computes."""
    layout = Layout(pp=4, dp_shard=8, zero_stage=1)
    clipped, free = (step_parts(plan_of(layout, clip_gradients=clips)) for clips in (True, False))
    assert len(set(clipped.waits.updates_start_s)) == 1
    assert free.waits.updates_start_s[-1] < free.waits.updates_start_s[0] < clipped.waits.updates_start_s[0]
    assert free.step_s < clipped.step_s
    assert not [call for call in free.times[0].collectives if call.collective.name == "gradient norm"]
    assert free.times[0].compute.optimizer_s < clipped.times[0].compute.optimizer_s


@pytest.mark.parametrize(("engine", "precision"), [("native", "bf16-mixed"), ("megatron", "fp16-mixed")])
def test_what_all_ranks_add_up_anyway_stays_a_barrier(engine, precision):
    """Our trainer adds up its loss, fp16 looks for infinite gradients everywhere."""
    layout = Layout(pp=4, dp_shard=8, zero_stage=1)
    found = [step_parts(plan_of(layout, engine=engine, precision=precision, clip_gradients=clips)) for clips in (0, 1)]
    assert found[0].step_s == found[1].step_s

"""What a stage can hide, and what it waits for."""

from dataclasses import replace

import pytest

import shapes
from shardwise.catalog import read_cluster
from shardwise.layout import Layout
from shardwise.plan import Plan
from shardwise.predict.concurrency import NETWORK_SLOWDOWN, SCALE_UP_SLOWDOWN
from shardwise.predict.stage_time import StageClock
from shardwise.recipe import Recipe
from shardwise.step.layer_placement import pipeline_stages


def plan_of(layout, *, engine="fsdp2", network_ratio=1.0, **recipe):
    cluster = read_cluster(f"{max(1, layout.world_size // 8)} x dgx-h100")
    network = cluster.node.network
    slower = replace(network, bandwidth_bytes_per_s=network.bandwidth_bytes_per_s * network_ratio)
    return Plan(
        model=shapes.llama_3_8b(),
        cluster=replace(cluster, node=replace(cluster.node, network=slower)),
        recipe=Recipe(**({"seq_len": 8192} | recipe)),
        layout=layout,
        engine=engine,
    )


def stages_of(plan):
    clock = StageClock(plan)
    return [clock.stage_time(stage) for stage in pipeline_stages(model=plan.model, layout=plan.layout)]


def exposed_share(stage, name, phase="backward"):
    """Exposed over total time of the hideable calls of a name."""
    found = [
        time
        for time in stage.collectives
        if time.collective.name == name and time.collective.is_overlappable and time.collective.phase == phase
    ]
    return sum(time.exposed_s for time in found) / sum(time.total_s for time in found)


def test_what_fits_under_compute_only_slows_it():
    """31 of 32 gathers; the first block has only the embedding to hide behind."""
    stage = stages_of(plan_of(Layout(dp_shard=8)))[0]
    slowed = SCALE_UP_SLOWDOWN - 1
    gathers = exposed_share(stage, "all-gather blocks[0]", "forward")
    assert 31 / 32 * slowed < gathers < 31 / 32 * slowed + 1 / 32
    assert exposed_share(stage, "reduce-scatter blocks[0]") == pytest.approx(slowed, rel=0.03)


def test_what_does_not_fit_is_waited_for():
    """A network a hundred times slower: nearly everything beyond the backward's compute is exposed."""
    stage = stages_of(plan_of(Layout(dp_shard=16), network_ratio=0.01))[0]
    backward = [
        time for time in stage.collectives if time.collective.is_overlappable and time.collective.phase == "backward"
    ]
    total_s = sum(time.total_s for time in backward)
    hidden_s = stage.compute.backward_s
    expected_s = total_s - hidden_s + (NETWORK_SLOWDOWN - 1) * hidden_s
    assert sum(time.exposed_s for time in backward) == pytest.approx(expected_s, rel=0.02)


def test_a_reduction_once_per_step_hides_under_one_micro_batch():
    """DDP of eight micro-batches has the last backward only."""
    one = stages_of(plan_of(Layout(dp_shard=16, zero_stage=0), network_ratio=0.1))[0]
    eight = stages_of(plan_of(Layout(dp_shard=16, zero_stage=0), network_ratio=0.1, global_batch_size=128))[0]
    assert eight.compute.backward_s == pytest.approx(8 * one.compute.backward_s)
    assert eight.step_exposed_s == pytest.approx(one.step_exposed_s, rel=1e-6)


def test_the_first_gather_and_the_last_reduction_are_always_exposed():
    stage = stages_of(plan_of(Layout(dp_shard=8), compile=False))[0]
    edges = [time for time in stage.collectives if "embedding and head" in time.collective.name]
    assert len(edges) == 2
    assert all(time.exposed_s == pytest.approx(time.total_s) for time in edges)


def test_tensor_parallelism_is_waited_for_by_every_micro_batch():
    stage = stages_of(plan_of(Layout(tp=8, zero_stage=0), compile=False))[0]
    assert stage.model_parallel_exposed_s == pytest.approx(
        sum(time.total_s for time in stage.collectives if time.collective.phase != "optimizer")
    )
    assert stage.busy_s > stage.compute.forward_s + stage.compute.backward_s


def test_ring_attention_hides_under_attention_only():
    """Over two nodes, long sequences hide the ring, short ones do not, unless they are so short that it ends while the
    device waits for the host: at 1,024 tokens a rank the kernels that merge 15 pieces take longer to issue than to run.
    """
    long, short, issued_late = (
        stages_of(plan_of(Layout(cp=16, zero_stage=0), engine="megatron", seq_len=length))[0]
        for length in (262_144, 32_768, 16_384)
    )
    name = "context parallel send_recv"
    assert exposed_share(long, name, "forward") == pytest.approx(NETWORK_SLOWDOWN - 1)
    assert exposed_share(short, name, "forward") > 3 * (NETWORK_SLOWDOWN - 1)
    assert exposed_share(issued_late, name, "forward") == 0.0
    assert issued_late.compute.host_gain_s > sum(
        time.total_s for time in issued_late.collectives if time.collective.phase == "forward"
    )


def test_inner_stages_take_equally_long_and_the_last_one_longest():
    stages = stages_of(plan_of(Layout(pp=4, zero_stage=0), engine="megatron", global_batch_size=8))
    assert stages[1].busy_s == stages[2].busy_s
    assert [stage.stage for stage in stages] == [0, 1, 2, 3]
    assert max(stages, key=lambda stage: stage.busy_s).stage == 3


def test_keeping_parameters_gathered_leaves_no_gather_to_backward():
    kept = stages_of(plan_of(Layout(dp_shard=8, reshard_after_forward=False)))[0]
    again = stages_of(plan_of(Layout(dp_shard=8)))[0]
    gathers = [
        [time for time in stage.collectives if time.collective.kind == "all_gather" and time.collective.phase == phase]
        for stage, phase in ((kept, "backward"), (again, "backward"))
    ]
    assert gathers[0] == []
    assert gathers[1] != []
    assert kept.step_exposed_s < again.step_exposed_s


def test_replicas_are_reduced_after_the_shards():
    """HSDP over a slow network: what is exposed is the queue of all-reduces, and little of the shards' own."""
    layout = Layout(dp_shard=8, dp_replicate=2)
    stage = stages_of(plan_of(layout, network_ratio=0.02))[0]
    exposed = {"dp_shard": 0.0, "dp_replicate": 0.0}
    for time in stage.collectives:
        if time.collective.phase == "backward" and time.collective.axis in exposed:
            exposed[time.collective.axis] += time.exposed_s
    assert exposed["dp_replicate"] > 3 * exposed["dp_shard"]


def test_shorter_documents_take_less_attention_time():
    whole, packed = (plan_of(Layout(tp=8, zero_stage=0), mean_document_len=length) for length in (None, 1024))
    times = [stages_of(plan)[0].compute.attention_forward_s for plan in (whole, packed)]
    assert times[1] < times[0] / 4


def test_what_is_gathered_again_hides_as_little_as_in_forward():
    """Selective recomputation under asynchronous tensor parallelism: pieces of a gather run under products."""
    layout = Layout(tp=8, zero_stage=0, sequence_parallel=True, async_tensor_parallel=True)
    recipe = {"recompute": "selective", "micro_batch_size": 4}
    stage = stages_of(plan_of(layout, engine="torchtitan", **recipe))[0]
    name = "sequence parallel all_gather"
    assert 0 < exposed_share(stage, name, "recompute") == pytest.approx(exposed_share(stage, name, "forward"))
    in_full = stages_of(plan_of(replace(layout, async_tensor_parallel=False), engine="torchtitan", **recipe))[0]
    again = [time for time in in_full.collectives if time.collective.phase == "recompute"]
    assert [time.exposed_s for time in again] == pytest.approx([time.total_s for time in again])


@pytest.mark.parametrize("schedule", ["interleaved", "zbv"])
def test_a_stage_takes_as_long_beside_others_as_timed_alone(schedule):
    """Where the model turns round, the last rank has neither embedding nor head, and still fewer neighbours."""
    plan = plan_of(Layout(pp=4, vpp=2, schedule=schedule, dp_shard=2), engine="native", global_batch_size=32)
    stages = pipeline_stages(model=plan.model, layout=plan.layout)
    assert stages_of(plan) == [StageClock(plan).stage_time(stage) for stage in stages]

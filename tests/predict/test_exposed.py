"""What communication adds to a step: makespans with and without it."""

from dataclasses import replace

import pytest

import shapes
from shardwise.catalog import read_cluster
from shardwise.layout import Layout
from shardwise.plan import Plan
from shardwise.predict import exposed_communication
from shardwise.predict.exposed import unit_of
from shardwise.predict.step_parts import step_parts
from shardwise.predict.time import predict_time
from shardwise.recipe import Recipe


def plan_of(layout, *, engine="fsdp2", **recipe):
    return Plan(
        model=shapes.llama_3_8b(8),
        cluster=read_cluster(f"{max(1, layout.world_size // 8)} x dgx-h100"),
        recipe=Recipe(**({"seq_len": 8192} | recipe)),
        layout=layout,
        engine=engine,
    )


SEVERAL = {
    "hsdp": plan_of(Layout(dp_shard=8, dp_replicate=2)),
    "fsdp and tp": plan_of(Layout(dp_shard=8, tp=2, sequence_parallel=True)),
    "megatron": plan_of(Layout(dp_shard=4, tp=2, pp=2, zero_stage=1), engine="megatron", global_batch_size=32),
}


@pytest.mark.parametrize("plan", SEVERAL.values(), ids=SEVERAL.keys())
def test_it_is_the_makespan_less_the_makespan_with_free_communication(plan):
    found = exposed_communication(plan)
    free_s = step_parts(plan, is_free=lambda _: True).step_s
    assert found.total_s == pytest.approx(predict_time(plan)[0].step_s - free_s, rel=1e-9)
    assert 0 < found.total_s < free_s


@pytest.mark.parametrize("plan", SEVERAL.values(), ids=SEVERAL.keys())
def test_parts_are_makespans_with_one_of_them_free_and_what_is_left_is_shared(plan):
    """They need not sum: what two axes hide behind each other goes with both only."""
    found = exposed_communication(plan)
    assert len(found.axes) > 1
    for share in found.axes:
        alone_s = (
            step_parts(plan).step_s - step_parts(plan, is_free=lambda call, axis=share.name: call.axis == axis).step_s
        )
        assert share.exposed_s == pytest.approx(alone_s, abs=1e-12)
    assert sum(share.exposed_s for share in found.axes) + found.shared_by_axes_s == pytest.approx(found.total_s)
    assert sum(share.exposed_s for share in found.units) + found.shared_by_units_s == pytest.approx(found.total_s)


def test_one_rank_exposes_nothing():
    found = exposed_communication(plan_of(Layout()))
    assert (found.total_s, found.axes, found.units, found.shared_by_axes_s) == (0.0, (), (), 0.0)


def test_communication_that_takes_no_time_adds_none():
    """With everything free already, freeing it again changes nothing."""
    plan = SEVERAL["megatron"]
    free = step_parts(plan, is_free=lambda _: True)
    assert all(call.total_s == call.exposed_s == 0.0 for stage in free.times for call in stage.collectives)
    assert (free.waits.gathers_s, free.waits.reductions_s, free.waits.sends_s) == (0.0, 0.0, 0.0)


def test_one_axis_has_all_of_it_and_what_the_components_say():
    plan = plan_of(Layout(dp_shard=8), compile=False)
    found = exposed_communication(plan)
    (share,) = found.axes
    components = {entry.component: entry.duration_s for entry in predict_time(plan)[0].components}
    assert (share.name, share.exposed_s, found.shared_by_axes_s) == ("dp_shard", found.total_s, 0.0)
    assert found.total_s == pytest.approx(components["exposed_communication"], rel=1e-6)


def test_slower_links_expose_more():
    plan = SEVERAL["hsdp"]
    network = plan.cluster.node.network
    slower = replace(network, bandwidth_bytes_per_s=network.bandwidth_bytes_per_s / 8)
    cluster = replace(plan.cluster, node=replace(plan.cluster.node, network=slower))
    assert exposed_communication(replace(plan, cluster=cluster)).total_s > exposed_communication(plan).total_s


def test_units_are_what_travels_whatever_is_done_with_it():
    parts = step_parts(SEVERAL["hsdp"])
    units = {unit_of(call.collective) for stage in parts.times for call in stage.collectives}
    assert units == {"blocks[0]", "embedding and head", "gradient norm"}

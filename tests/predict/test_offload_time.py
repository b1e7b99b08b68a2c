"""Copies to and from the host beside the passes of a stage."""

from dataclasses import replace

import pytest

import shapes
from shardwise.catalog import read_cluster
from shardwise.layout import Layout
from shardwise.plan import Plan
from shardwise.predict.offload_time import HOST_LINK_FRACTION, host_copies, offload_time
from shardwise.predict.stage_time import StageClock
from shardwise.predict.stage_work import stage_work
from shardwise.recipe import Recipe
from shardwise.step.placement import pipeline_stages
from shardwise.step.stage_context import StageContext


def context_of(*, link_ratio=1.0, **recipe):
    cluster = read_cluster("8xh100-sxm")
    slower = cluster.gpu.pcie_bandwidth_bytes_per_s * link_ratio
    plan = Plan(
        model=shapes.llama_3_8b(),
        cluster=replace(
            cluster, node=replace(cluster.node, gpu=replace(cluster.gpu, pcie_bandwidth_bytes_per_s=slower))
        ),
        recipe=Recipe(**({"seq_len": 8192} | recipe)),
        layout=Layout(dp_shard=8),
        engine="deepspeed",
    )
    (stage,) = pipeline_stages(model=plan.model, layout=plan.layout)
    return StageContext(plan=plan, stage=stage)


def copies_s(context):
    clock = StageClock(context.plan)
    work = stage_work(context, clock.work_book(context), clock.timed_calls(context))
    return offload_time(context, work).copies_s


def link_s(context, num_bytes):
    """Eight GPUs share the 200 GB/s of their host's memory; a slower link decides by itself."""
    node = context.plan.cluster.node
    return num_bytes / min(node.gpu.pcie_bandwidth_bytes_per_s * HOST_LINK_FRACTION, 200e9 / node.gpus_per_node)


def test_nothing_moves_when_nothing_is_offloaded():
    assert copies_s(context_of()) == 0.0


def test_streamed_parameters_hide_but_for_the_first_block_and_the_last_gradients():
    """Of 32 blocks' copies the first (partly hidden under embedding or head) and the last gradients are waited for."""
    context = context_of(offload="parameters")
    copies = host_copies(context)
    edges_s = 2 * link_s(context, copies.parameter_bytes) / 32 + link_s(context, copies.gradient_bytes) / 32
    assert 0.3 * edges_s < copies_s(context) <= edges_s * 1.0001


def test_a_slow_link_is_waited_for():
    """A thousandth of the bandwidth: hardly anything of the copies hides under computation."""
    context = context_of(offload="parameters", link_ratio=0.001)
    copies = host_copies(context)
    # Parameters in both passes; gradients leave beside the parameters of the backward, on the other direction's stream.
    alone_s = 2 * link_s(context, copies.parameter_bytes)
    assert 0.95 * alone_s < copies_s(context)


def test_updated_weights_come_back_under_nothing():
    context = context_of(offload="optimizer")
    assert copies_s(context) >= link_s(context, host_copies(context).weight_bytes)


def test_offloaded_activations_take_twice_the_time_for_twice_the_micro_batches():
    slow = {"activation_offload": True, "recompute": "full", "link_ratio": 0.05}
    one, two = (copies_s(context_of(global_batch_size=8 * count, **slow)) for count in (1, 2))
    assert two == pytest.approx(2 * one)
    assert one > 0

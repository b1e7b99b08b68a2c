"""Copies around gathered and scattered sequences, in bytes that can be counted by hand."""

from dataclasses import replace

import pytest

import shapes
from shardwise.catalog import read_cluster
from shardwise.layout import Layout
from shardwise.plan import Plan
from shardwise.recipe import Recipe
from shardwise.step.block_operations import block_operations
from shardwise.step.collectives import block_collectives
from shardwise.step.layer_placement import pipeline_stages
from shardwise.step.operation_context import operation_context
from shardwise.step.recomputed_operations import recomputed_operations
from shardwise.step.stage_context import StageContext

WHOLE_BYTES = 2 * 3 * 1024 * 4096
"""Three sequences of 1,024 tokens, 4,096 wide, in 16 bits."""


def context_of(engine="torchtitan", *, micro_batch_size=3, **layout):
    plan = Plan(
        model=shapes.llama_3_8b(),
        cluster=read_cluster("1 x dgx-h100"),
        recipe=Recipe(seq_len=1024, micro_batch_size=micro_batch_size, compile=True, recompute="selective"),
        layout=Layout(**({"tp": 8, "sequence_parallel": True} | layout)),
        engine=engine,
    )
    (stage,) = pipeline_stages(model=plan.model, layout=plan.layout)
    return StageContext(plan=plan, stage=stage)


def copies(context, *, phase):
    layer, _ = context.layer_runs[0]
    operations = block_operations(layer, operation_context(context), context.plan.recipe)
    return {
        one.name.removesuffix(".backward"): one.num_bytes
        for one in operations
        if "sequences" in one.name and one.phase == phase
    }


@pytest.mark.parametrize("engine", ["torchtitan", "fsdp2", "native"])
@pytest.mark.parametrize("phase", ["forward", "backward"])
def test_two_gathers_and_two_sums_of_a_block_are_each_copied_once(engine, phase):
    """Read and written: 2 x 2 x 24 MiB of either kind."""
    assert copies(context_of(engine), phase=phase) == {
        "gathered sequences": 4 * WHOLE_BYTES,
        "sequences to scatter": 4 * WHOLE_BYTES,
    }


@pytest.mark.parametrize(
    ("engine", "changes"),
    [
        ("torchtitan", {"micro_batch_size": 1}),
        ("torchtitan", {"sequence_parallel": False}),
        ("torchtitan", {"tp": 1, "dp_shard": 8, "sequence_parallel": False}),
        ("megatron", {}),
    ],
)
def test_one_sequence_and_whole_sequences_and_megatrons_order_need_no_copy(engine, changes):
    assert copies(context_of(engine, **changes), phase="forward") == {}


def test_pieces_are_multiplied_as_they_come_in_forward_alone():
    context = context_of(async_tensor_parallel=True)
    assert copies(context, phase="forward") == {}
    assert len(copies(context, phase="backward")) == 2


def test_selective_recomputation_gathers_again_but_keeps_what_was_scattered():
    context = context_of()
    layer, _ = context.layer_runs[0]
    operation = operation_context(context)
    once = block_operations(layer, operation, context.plan.recipe)
    again = recomputed_operations(
        once, operation, layer=layer, recipe=context.plan.recipe, policy=context.profile.selective_policy
    )
    names = {one.name for one in again}
    assert "gathered sequences" in names
    assert "sequences to scatter" not in names


@pytest.mark.parametrize(("engine", "element_bytes"), [("torchtitan", 1), ("fsdp2", 2)])
def test_torchtitan_casts_to_eight_bits_before_it_gathers(engine, element_bytes):
    """Sums travel in 16 bits."""
    context = context_of(engine)
    context = replace(context, plan=replace(context.plan, recipe=replace(context.plan.recipe, precision="fp8-mixed")))
    layer, _ = context.layer_runs[0]
    sizes = {call.kind: call.num_bytes for call in block_collectives(layer, context)}
    assert sizes == {"all_gather": element_bytes * WHOLE_BYTES // 2, "reduce_scatter": WHOLE_BYTES}
    assert copies(context, phase="forward")["gathered sequences"] == 2 * element_bytes * WHOLE_BYTES

"""What is computed around the kernel of attention."""

from dataclasses import replace

import pytest

import shapes
from shardwise.layout import Layout
from shardwise.plan import Plan
from shardwise.recipe import Recipe
from shardwise.step.layer_placement import pipeline_stages
from shardwise.step.operations import stage_operations
from shardwise.step.stage_context import StageContext


def packing_of(plan):
    stage = pipeline_stages(model=plan.model, layout=plan.layout)[0]
    return [one for one in stage_operations(StageContext(plan=plan, stage=stage)) if ".packing" in one.name]


@pytest.mark.parametrize(("sequences", "copies"), [(1, (3, 3)), (2, (7, 4))])
def test_flash_attention_1_takes_heads_that_are_copied_into_one_tensor(sequences, copies):
    """Three heads' worth are joined; with several sequences all are turned as well, and the output back."""
    plan = Plan(
        model=shapes.llama_3_8b(),
        cluster=shapes.cluster(1),
        recipe=Recipe(seq_len=8192, micro_batch_size=sequences, attention_kernel="fa1", recompute="full"),
        layout=Layout(zero_stage=0),
        engine="deepspeed",
    )
    packing = packing_of(plan)
    assert [one.phase for one in packing] == ["forward", "backward", "recompute"]
    element_copies = [one.num_bytes / (4 * sequences * 8192 * 4096) for one in packing]
    assert element_copies == [*copies, copies[0]]
    newer = replace(plan, recipe=replace(plan.recipe, attention_kernel="fa2"))
    assert packing_of(newer) == []

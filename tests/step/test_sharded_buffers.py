"""What FSDP and ZeRO-3 gather and reduce, moment by moment, for Llama 3 8B."""

from dataclasses import replace

import pytest

import shapes
from shardwise.layout import Layout
from shardwise.plan_file import read_plan
from shardwise.step.layer_placement import pipeline_stages
from shardwise.step.stage_context import StageContext
from shardwise.step.stage_inventory import stage_inventory
from step.moments import AFTER_FIRST, AFTER_LAST, END, FIRST_BLOCK, FORWARD, HEAD, LAST_BLOCK, LOSS, alive


def test_blocks_that_stay_gathered_are_freed_in_backward_each_after_its_own():
    """torch's ``_fsdp_param_group.post_backward`` reshards whatever ``reshard_after_forward`` says."""
    plan = read_plan(
        {
            "model": "llama-3.1-8b",
            "cluster": "8xh100-sxm",
            "recipe": {"seq_len": 4096},
            "layout": {"dp_shard": 8, "reshard_after_forward": False},
            "engine": "fsdp2",
        }
    )
    (stage,) = pipeline_stages(model=plan.model, layout=plan.layout)
    timeline = StageContext(plan=plan, stage=stage).timeline
    tensors = stage_inventory(plan=plan, stage=stage).tensors
    (gathered,) = [tensor for tensor in tensors if tensor.name == "gathered blocks"]
    assert gathered.first_use <= timeline.forward
    assert timeline.runs[0].last_backward <= gathered.last_use < timeline.backward_end


BLOCK, TABLES = 218_112_000, 2 * 128_256 * 4096 + 4096
HEAD_MATRIX = 128_256 * 4096
"""Elements of a block of Llama 3 8B, of its tables with the final norm, and of its head."""


def plan_of(*, blocks=32, engine="fsdp1", recipe=None, **layout):
    return shapes.plan(
        shapes.llama_3_8b(num_layers=blocks),
        engine=engine,
        layout=Layout(**{"dp_shard": 8} | layout),
        **{"precision": "bf16-mixed"} | (recipe or {}),
    )


def gathered(plan, stage=0):
    """Without tables and head, which stay until the first block's backward: 2 bytes an element."""
    found = alive(plan, "gathered_parameters", stage=stage)
    root = alive(plan, "gathered embedding and head", stage=stage)
    return [one - table for one, table in zip(found, root, strict=True)]


@pytest.mark.parametrize(("engine", "copies"), [("fsdp1", 2), ("fsdp2", 3)])
@pytest.mark.parametrize("ahead", [1, 2])
def test_forward_holds_a_block_and_those_gathered_ahead(engine, copies, ahead):
    """FSDP1 gathers in place and one block ahead; FSDP2 copies out of a flat output, and gathers the next into one."""
    found = gathered(plan_of(engine=engine, prefetch_units=ahead))
    assert found[FORWARD] == 2 * (copies + ahead - 1) * BLOCK
    assert found[LOSS] == found[HEAD] == 2 * BLOCK
    assert found[LAST_BLOCK] == found[AFTER_LAST] == 2 * (1 + ahead) * BLOCK
    assert found[FIRST_BLOCK] == 2 * BLOCK
    assert found[AFTER_FIRST] == found[END] == 0


def test_no_more_blocks_are_gathered_ahead_than_there_are():
    found = gathered(plan_of(blocks=2, prefetch_units=8))
    assert found[LAST_BLOCK] == 2 * 2 * BLOCK


def test_every_run_of_blocks_but_the_models_first_gathers_ahead():
    narrow = shapes.dense_layer(hidden_size=4096, intermediate_size=7168, heads=32, kv_heads=8)
    model = replace(shapes.llama_3_8b(), layers=(narrow,) * 4 + shapes.llama_3_8b().layers[:4])
    found = gathered(shapes.plan(model, engine="fsdp1", layout=Layout(dp_shard=8, prefetch_units=2)))
    assert found[FIRST_BLOCK] == 2 * (1 + 2) * BLOCK
    assert found[-5] == 2 * (BLOCK - 3 * 4096 * 7168)


def test_a_smaller_group_keeps_its_part_of_all_blocks():
    found = gathered(plan_of(reshard_size=4))
    without = gathered(plan_of())
    assert [one - other for one, other in zip(found, without, strict=True)][FORWARD:END] == [2 * 32 * BLOCK // 4] * (
        END - FORWARD
    )
    assert found[END] == 0


@pytest.mark.parametrize(
    ("layout", "blocks"), [({"reshard_after_forward": False}, 32), ({"pp": 2, "dp_shard": 4}, 16)], ids=["asked", "pp"]
)
def test_blocks_that_stay_are_gathered_once(layout, blocks):
    found = gathered(plan_of(recipe={"global_batch_size": 16}, **layout))
    assert found[FORWARD] == found[-5] == 2 * blocks * BLOCK


def test_tables_stay_gathered_until_the_first_blocks_backward_and_are_reduced_last():
    """2 bytes an element. The head's gradient waits for the table's, then both are cast to fp32 beside them."""
    plan = plan_of()
    tables = alive(plan, "gathered embedding and head")
    assert tables[FORWARD] == tables[AFTER_FIRST] == 2 * TABLES
    assert tables[END] == 0
    head = alive(plan, "head gradient")
    assert head[HEAD] == head[AFTER_FIRST] == 2 * HEAD_MATRIX
    assert head[END] == head[LOSS] == 0
    assert alive(plan, "embedding gradients being reduced")[END] == 2 * (TABLES - HEAD_MATRIX) + 4 * TABLES


def test_a_block_meets_the_fp32_gradients_of_the_one_before_it():
    """4 bytes an element of the block behind it; after its backward its own 2 and 4 as well. None precedes the last."""
    found = alive(plan_of(), "gradients being reduced")
    assert found[HEAD] == found[LAST_BLOCK] == 0
    assert found[AFTER_LAST] == (2 + 4) * BLOCK
    assert found[FIRST_BLOCK] == 4 * BLOCK
    assert found[AFTER_FIRST] == (2 + 4 + 4) * BLOCK


@pytest.mark.parametrize(
    ("layout", "batch", "elements"),
    [
        ({}, 8, 0),
        ({}, 16, 0),
        ({"defer_grad_reduce": True}, 16, 32 * BLOCK + TABLES),
        ({"defer_grad_reduce": True}, 8, 0),
        ({"pp": 2, "dp_shard": 4}, 16, 16 * BLOCK + HEAD_MATRIX),
        ({"pp": 2, "dp_shard": 4}, 4, 16 * BLOCK + HEAD_MATRIX),
    ],
)
def test_gradients_that_no_micro_batch_reduces_wait_whole_in_fp32(layout, batch, elements):
    found = alive(plan_of(recipe={"global_batch_size": batch}, **layout), "whole gradients")
    assert found[FORWARD] == found[-3] == 4 * elements


def test_zero_3_keeps_so_many_elements_gathered_and_two_buckets():
    """DeepSpeed ``runtime/zero/config.py``: 1e9 live and 5e7 prefetched elements, buckets of 5e8, in 2 bytes each."""
    plan = plan_of(engine="deepspeed")
    live, buckets = alive(plan, "gathered live parameters"), alive(plan, "reduce buckets")
    assert live[FORWARD] == live[END] == 2 * 1_050_000_000
    assert live[0] == 0
    assert buckets[LOSS] == 0
    assert buckets[HEAD] == buckets[END] == 2 * 2 * 500_000_000


def test_zero_3_of_a_small_model_gathers_all_of_it():
    layer = shapes.llama_3_8b().layers[0]
    model = shapes.model(layer, num_layers=2, hidden_size=4096, vocab_size=1024)
    elements = 2 * BLOCK + 2 * 1024 * 4096 + 4096
    plan = shapes.plan(model, engine="deepspeed", layout=Layout(dp_shard=8))
    assert alive(plan, "gathered live parameters")[FORWARD] == 2 * elements
    assert alive(plan, "reduce buckets")[END] == 2 * 2 * elements


def held_at(plan, names, moment):
    (stage,) = pipeline_stages(model=plan.model, layout=plan.layout)
    at = getattr(StageContext(plan=plan, stage=stage).timeline, moment)
    tensors = stage_inventory(plan=plan, stage=stage).tensors
    return sum(one.num_bytes for one in tensors if one.name in names and one.first_use <= at <= one.last_use)


def test_torchtitan_wraps_the_token_table_and_the_head_for_themselves():
    """6 bytes an element of the table wait at the end of backward; a root unit has 2 of the table and 4 of both."""
    question = {
        "model": "llama-3.1-8b",
        "cluster": "8xh100-sxm",
        "recipe": {"seq_len": 4096},
        "layout": {"dp_shard": 8},
    }
    titan, loop = (read_plan({**question, "engine": engine}) for engine in ("torchtitan", "fsdp2"))
    table, norm = 128256 * 4096, 4096
    waiting = {"embedding gradients being reduced"}
    assert held_at(titan, waiting, "backward_end") == 6 * table
    assert held_at(loop, waiting, "backward_end") == 2 * (table + norm) + 4 * (2 * table + norm)
    gathered = {"gathered head", "gathered embedding", "gathered embedding and head", "gathered last block"}
    block = 2 * titan.model.layers[0].num_params
    assert held_at(titan, gathered, "loss_backward") == 2 * (table + norm)
    assert held_at(loop, gathered, "loss_backward") == 2 * (2 * table + norm) + block


def test_a_stage_without_blocks_reduces_its_embedding_after_backward():
    """torchtitan gives embedding and head stages of their own where there are two stages more than layers."""
    plan = plan_of(blocks=2, engine="torchtitan", pp=4)
    stages = pipeline_stages(model=plan.model, layout=plan.layout)
    assert [stage.num_layers for stage in stages] == [0, 1, 1, 0]
    end = StageContext(plan=plan, stage=stages[0]).timeline.backward_end
    name = "embedding gradients being reduced"
    (reduced,) = [one for one in stage_inventory(plan=plan, stage=stages[0]).tensors if one.name == name]
    assert (reduced.first_use, reduced.last_use) == (end, end)
    assert stage_inventory(plan=plan, stage=stages[-1]).tensors

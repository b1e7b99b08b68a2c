"""Transients of communication and of gradients on their way, moment by moment, for Llama 3 8B."""

from dataclasses import replace

import pytest

import shapes
from shardwise.layout import Layout
from step.moments import (
    AFTER_FIRST,
    AFTER_LAST,
    END,
    FIRST_BLOCK,
    FORWARD,
    HEAD,
    LAST_BLOCK,
    LOSS,
    STEP,
    alive,
)

BLOCK, MATRICES, WIDEST = 218_112_000, 218_103_808, 4096 * 14_336
"""Elements of a block, of its matrices and of the largest of them."""
TABLE, MODEL = 128_256 * 4096, 8_030_261_248
"""Elements of the token table, as many as the head's, and of the whole model."""
HIDDEN = 4096 * 4096 * 2
"""Bytes of the hidden states of 4,096 tokens."""


def plan_of(engine, *, model=None, recipe=None, **layout):
    chosen = {"precision": "bf16-mixed", "recompute": "none"} | (recipe or {})
    return shapes.plan(model or shapes.llama_3_8b(), engine=engine, layout=Layout(**layout), **chosen)


def test_libraries_keep_64_mib_on_a_gpu_the_whole_step():
    assert set(alive(plan_of("megatron"), "library workspaces")) == {67_108_864}


def test_deepspeed_reduces_from_two_buckets_and_gathers_into_one():
    """5e8 elements of 2 bytes each (``reduce_bucket_size`` and ``allgather_bucket_size``), or all there are."""
    plan = plan_of("deepspeed", dp_shard=8, zero_stage=1)
    reduces, gathers = alive(plan, "reduce buckets"), alive(plan, "all-gather bucket")
    assert reduces[HEAD] == reduces[END] == 2 * 2 * 500_000_000
    assert reduces[LOSS] == reduces[STEP] == 0
    assert gathers[STEP] == sum(gathers) == 2 * 500_000_000
    model = shapes.model(shapes.llama_3_8b().layers[0], num_layers=2, hidden_size=4096, vocab_size=1024)
    small = plan_of("deepspeed", model=model, dp_shard=8, zero_stage=1)
    assert alive(small, "reduce buckets")[END] == 2 * 2 * (2 * BLOCK + 2 * 1024 * 4096 + 4096)


@pytest.mark.parametrize(
    ("layout", "copies"),
    [
        ({"dp_shard": 8, "zero_stage": 0}, 1),
        ({"dp_shard": 8, "zero_stage": 1}, 1),
        ({"zero_stage": 0}, 0),
        ({"dp_shard": 8, "zero_stage": 2}, 0),
    ],
)
def test_ddp_keeps_a_second_copy_of_all_gradients(layout, copies):
    """torch's ``gradient_as_bucket_view=False``; FSDP without parameter sharding has no such buckets."""
    assert set(alive(plan_of("fsdp1", **layout), "DDP gradient buckets")) == {copies * 4 * MODEL}


def test_our_ddp_adds_gradients_up_beside_its_buckets():
    def beside(batch):
        recipe = {"precision": "bf16", "global_batch_size": batch}
        return alive(plan_of("native", recipe=recipe, dp_shard=8, zero_stage=0), "gradients beside their buckets")

    assert set(beside(8)) == {0}
    assert beside(16)[FORWARD] == beside(16)[END] == 2 * MODEL
    assert beside(16)[STEP] == 0


def test_autocast_keeps_a_copy_of_every_weight_until_the_blocks_backward():
    """2 bytes an element; the head's until its own backward, the token table is looked up and not cast."""
    found = alive(plan_of("fsdp1", dp_shard=8, zero_stage=0), "autocast weight copies")
    assert found[FORWARD] == found[HEAD] == 2 * (32 * BLOCK + TABLE)
    assert found[LAST_BLOCK] == 2 * 32 * BLOCK
    assert found[AFTER_LAST] == found[FIRST_BLOCK] == 2 * BLOCK
    assert found[AFTER_FIRST] == 0


def test_recomputed_blocks_cast_their_weights_again():
    """The first 8 of 32 are recomputed: their copies go with the cache after forward, and one comes back at a time.

    A compiled block casts inside its graph, which autocast does not cache.
    """
    recipe = {"recompute": "full", "recompute_layers": 8, "compile": False}
    found = alive(plan_of("fsdp1", recipe=recipe, dp_shard=8, zero_stage=0), "autocast weight copies")
    kept = 24 * BLOCK
    expected = [0, 32 * BLOCK + TABLE, 32 * BLOCK + TABLE, kept + TABLE, kept + TABLE]
    expected += [kept, BLOCK, BLOCK, 0, BLOCK, 0, BLOCK, 0, 0, 0, 0]
    assert found == [2 * one for one in expected]
    compiled = alive(
        plan_of("fsdp1", recipe={**recipe, "compile": True}, dp_shard=8, zero_stage=0), "autocast weight copies"
    )
    assert compiled[FORWARD] == found[FORWARD] - 2 * 8 * BLOCK
    assert compiled[FIRST_BLOCK] == found[FIRST_BLOCK]


def test_one_dequantised_matrix_is_multiplied_at_a_time():
    found = alive(plan_of("fsdp1", recipe={"adapter": "qlora"}, dp_shard=8), "dequantised weight")
    assert [moment for moment, num_bytes in enumerate(found) if num_bytes] == [LAST_BLOCK, AFTER_LAST, FIRST_BLOCK]
    assert found[LAST_BLOCK] == 2 * WIDEST
    assert set(alive(plan_of("fsdp1", recipe={"adapter": "lora"}, dp_shard=8), "dequantised weight")) == {0}


def test_transformer_engine_keeps_a_placeholder_for_every_matrix_of_different_blocks():
    """``get_dummy_wgrad`` caches one for each shape: blocks that differ only in their window share theirs."""
    full = shapes.llama_3_8b().layers[0]
    windowed = replace(full, mixer=replace(full.mixer, sliding_window=1024))
    renamed = replace(full, weights=tuple(replace(one, name=f"other.{one.name}") for one in full.weights))
    narrow = shapes.dense_layer(hidden_size=4096, intermediate_size=7168, heads=32, kv_heads=8)
    for layers, elements in (
        ((full,) * 4, MATRICES),
        ((full, windowed, full, windowed), MATRICES),
        ((full, renamed) * 2, MATRICES),
        ((full, narrow) * 2, MATRICES + MATRICES - 3 * 4096 * 7168),
    ):
        plan = plan_of("megatron", model=replace(shapes.llama_3_8b(), layers=layers), tp=2, zero_stage=1)
        assert set(alive(plan, "placeholder weight gradients")) == {2 * elements // 2}


def test_gradients_are_made_whole_where_they_are_cast_or_added():
    """The widest matrix of a block, the head and the table; in 16 bits of one micro-batch none is a copy."""
    plan = plan_of("fsdp1", dp_shard=8, zero_stage=0)
    assert alive(plan, "weight gradient")[LAST_BLOCK] == alive(plan, "weight gradient")[FIRST_BLOCK] == 2 * WIDEST
    assert alive(plan, "head weight gradient")[HEAD] == sum(alive(plan, "head weight gradient")) == 2 * TABLE
    assert set(alive(plan, "embedding gradient")) == {0}
    more = plan_of("fsdp1", recipe={"global_batch_size": 16}, dp_shard=8, zero_stage=0)
    assert alive(more, "embedding gradient")[END] == 4 * TABLE
    pure = plan_of("fsdp1", recipe={"precision": "bf16"}, dp_shard=1, zero_stage=0)
    for name in ("weight gradient", "head weight gradient", "embedding gradient"):
        assert set(alive(pure, name)) == {0}
    added = plan_of("fsdp1", recipe={"precision": "bf16", "global_batch_size": 2}, dp_shard=1, zero_stage=0)
    assert alive(added, "weight gradient")[FIRST_BLOCK] == 2 * WIDEST
    assert alive(added, "head weight gradient")[HEAD] == 2 * TABLE
    assert alive(added, "embedding gradient")[END] == 2 * TABLE


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_dtensors_table_gradient_is_whole_on_every_tensor_parallel_rank(tp):
    """A rank's own part is counted with its gradients, so that both are the whole table in 4 bytes."""
    plan = plan_of("fsdp2", tp=tp, dp_shard=2, zero_stage=0)
    found = alive(plan, "whole embedding gradient")
    assert found[END] == found[STEP] == 4 * (TABLE - TABLE // tp)


def test_placeholders_stand_for_tables_too():
    plan = plan_of("megatron", tp=2, zero_stage=1)
    assert alive(plan, "head weight gradient")[HEAD] == 2 * TABLE // 2
    assert alive(plan, "embedding gradient")[END] == 2 * TABLE // 2


def messages(engine, *, stage=0, recipe=None, **layout):
    found = alive(plan_of(engine, recipe=recipe, **layout), "pipeline send and receive", stage=stage)
    assert found[FORWARD] == found[-3]
    return found[FORWARD]


def test_a_pipeline_keeps_a_message_to_send_and_one_to_receive():
    """Of the tokens of one rank, which tensor-parallel ranks divide along the sequence."""
    assert messages("megatron", pp=2, zero_stage=1) == 2 * HIDDEN
    assert messages("megatron", pp=2, tp=4, sequence_parallel=True, zero_stage=1) == 2 * HIDDEN // 4
    assert messages("megatron", pp=1, zero_stage=1) == 0


def test_torchs_stages_keep_a_buffer_for_every_micro_batch_and_direction():
    """``_setup_forward_recv_info``: the first stage receives gradients alone, the last one activations alone."""
    recipe = {"global_batch_size": 8}
    found = [messages("native", stage=stage, recipe=recipe, pp=4) for stage in range(4)]
    assert found == [8 * HIDDEN, 8 * 2 * HIDDEN, 8 * 2 * HIDDEN, 8 * HIDDEN]
    twice = [messages("native", stage=at, recipe=recipe, pp=4, vpp=2, schedule="interleaved") for at in (0, 1)]
    assert twice == [8 * 3 * HIDDEN, 8 * 4 * HIDDEN]


def exchanged(plan):
    found = alive(plan, "exchange buffers")
    assert found[LAST_BLOCK] == found[FIRST_BLOCK] == sum(found) / 2
    return found[FIRST_BLOCK]


def test_exchanges_inside_a_block_need_what_each_axis_moves():
    """tp: the hidden states; cp: keys and values to send and to receive, of at least one head; else nothing."""
    assert exchanged(plan_of("megatron", dp_shard=2, zero_stage=1)) == 0
    assert exchanged(plan_of("megatron", tp=4, zero_stage=1)) == HIDDEN
    keys = 2 * 2 * 2048 * 8 * 128 * 2
    assert exchanged(plan_of("megatron", cp=2, zero_stage=1)) == keys
    assert exchanged(plan_of("megatron", cp=2, tp=4, zero_stage=1)) == HIDDEN // 2 + keys // 4
    assert exchanged(plan_of("megatron", cp=2, tp=16, zero_stage=1)) == HIDDEN // 2 + keys // 8


def test_experts_exchange_every_copy_of_a_token_both_ways():
    """2 x 3 copies of 4,096 tokens of 64 numbers, divided over the ranks that divide the sequence."""
    layer = shapes.moe_layer(hidden_size=64, expert_size=32, heads=4, kv_heads=4, experts=16, per_token=3)
    model = shapes.model(layer, num_layers=2, hidden_size=64, vocab_size=1024)
    assert exchanged(plan_of("megatron", model=model, dp_shard=8, ep=8, zero_stage=1)) == 2 * 3 * 4096 * 64 * 2
    divided = plan_of("megatron", model=model, tp=2, sequence_parallel=True, dp_shard=8, ep=8, zero_stage=1)
    assert exchanged(divided) == 3 * 4096 * 64 * 2 + 4096 * 64 * 2
    assert exchanged(plan_of("megatron", model=model, dp_shard=8, zero_stage=1)) == 0


def test_eight_bit_moments_are_numbers_for_at_most_so_many_elements():
    """33 bytes for each of 16,777,216, or for the largest matrix; none where the host updates."""

    def numbers(model=None, **recipe):
        plan = plan_of("native", model=model, recipe={"optimizer": "adamw-8bit", **recipe}, dp_shard=8)
        return alive(plan, "8-bit moments as numbers")

    assert numbers()[STEP] == sum(numbers()) == 33 * 16_777_216
    layer = shapes.dense_layer(hidden_size=64, intermediate_size=256, heads=4, kv_heads=4)
    small = shapes.model(layer, num_layers=2, hidden_size=64, vocab_size=1024)
    assert numbers(small)[STEP] == 33 * 64 * 1024
    assert set(numbers(offload="optimizer")) == {0}

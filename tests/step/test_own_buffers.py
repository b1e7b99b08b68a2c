"""What waits beside the states of our own trainer, moment by moment, for Llama 3 8B in bf16."""

from dataclasses import replace

import pytest

import shapes
from shardwise.layout import Layout
from shardwise.step.layer_placement import pipeline_stages
from shardwise.step.stage_context import StageContext
from shardwise.step.stage_inventory import stage_inventory
from step.moments import (
    AFTER_FIRST,
    AFTER_LAST,
    END,
    FIRST_BLOCK,
    FORWARD,
    HEAD,
    LAST_BLOCK,
    LOSS,
    LOSS_BACKWARD,
    alive,
)

BLOCK = 218_112_000
TABLE = HEAD_MATRIX = 128_256 * 4096
NORM = 4096
"""Elements of one block, of the token table, of the head and of the final norm."""
WIDEST = 4096 * 14_336
"""The largest matrix of a block."""


def plan_of(*, blocks=32, vocab_size=128_256, recipe=None, **layout):
    layer = shapes.llama_3_8b().layers[0]
    model = shapes.model(layer, num_layers=blocks, hidden_size=4096, vocab_size=vocab_size)
    chosen = {"dp_shard": 8, "exchange_gradients": False, "spread_vocabulary": False} | layout
    return shapes.plan(model, layout=Layout(**chosen), **(recipe or {}))


def gathered(plan, stage=0):
    return alive(plan, "gathered_parameters", stage=stage)


def reduced(plan, stage=0):
    return alive(plan, "gradients being reduced", stage=stage)


@pytest.mark.parametrize("ahead", [1, 2])
def test_freed_blocks_are_gathered_one_at_a_time_and_some_ahead(ahead):
    """2 bytes an element: the norm throughout; in forward and behind the last block's backward so many blocks ahead.

    Before the loss the head is there twice, as it arrives and as it is used. The first block's backward gathers the
    token table ahead.
    """
    found = gathered(plan_of(prefetch_units=ahead))
    some_ahead = 2 * (NORM + (1 + ahead) * BLOCK)
    assert found[FORWARD] == some_ahead
    assert found[LOSS] == 2 * (NORM + BLOCK + 2 * HEAD_MATRIX)
    assert found[LOSS_BACKWARD] == found[HEAD] == 2 * (NORM + BLOCK + HEAD_MATRIX)
    assert found[LAST_BLOCK] == found[AFTER_LAST] == some_ahead
    assert found[FIRST_BLOCK] == 2 * (NORM + BLOCK + TABLE)
    assert found[AFTER_FIRST] == found[END] == 2 * NORM


def test_no_more_blocks_are_gathered_ahead_than_there_are():
    """Of two blocks the last one's backward gathers the other ahead, however many are asked for."""
    found = gathered(plan_of(blocks=2, prefetch_units=8))
    assert found[LAST_BLOCK] == 2 * (NORM + 2 * BLOCK)


def test_a_stage_without_the_head_gathers_no_flat_copy_of_it():
    found = gathered(plan_of(blocks=2, zero_stage=2, pp=2, dp_shard=4))
    assert found[FORWARD] == 2 * (BLOCK + TABLE)


def test_a_vocabulary_that_ranks_divide_is_not_gathered():
    """Neither token table nor head; before the loss the last block alone, without a second copy.

    In the table's place the second block counts: it gathers the first one ahead (2 bytes an element) when one block's
    gradients (4 bytes, an eighth on each rank) are not there yet.
    """
    found = gathered(plan_of(spread_vocabulary=True))
    assert found[LOSS] == found[HEAD] == 2 * (NORM + BLOCK)
    assert found[FIRST_BLOCK] == 2 * (NORM + BLOCK) + 2 * BLOCK - 4 * BLOCK // 8


def test_a_smaller_group_keeps_its_part_of_what_is_gathered_again():
    """31 blocks (the largest is counted whole) and the token table, divided by 4, until backward ends."""
    whole, divided = gathered(plan_of()), gathered(plan_of(reshard_size=4))
    part = 2 * (31 * BLOCK + TABLE) // 4
    more = [with_part - without for with_part, without in zip(divided, whole, strict=True)]
    assert more[FORWARD:END] == [part] * (END - FORWARD)
    assert more[END] == 0


def test_blocks_that_stay_gathered_go_one_by_one_in_backward():
    """All 32, the token table and the norm in forward, beside the flat copy of one block; then of the head.

    FSDP2 frees a unit before it reduces the unit's gradients (torch ``_fsdp_param_group.py``, ``post_backward``).
    """
    found = gathered(plan_of(reshard_after_forward=False))
    rest = TABLE + NORM
    assert found[FORWARD] == 2 * (32 * BLOCK + rest + BLOCK)
    assert found[LOSS] == 2 * (32 * BLOCK + rest + 2 * HEAD_MATRIX)
    assert found[HEAD] == 2 * (32 * BLOCK + rest + HEAD_MATRIX)
    assert found[LAST_BLOCK] == 2 * (32 * BLOCK + rest)
    assert found[AFTER_LAST] == 2 * (31 * BLOCK + rest)
    assert found[FIRST_BLOCK] == 2 * (BLOCK + rest)
    assert found[AFTER_FIRST] == 2 * rest
    assert found[END] == 0


@pytest.mark.parametrize("blocks", [1, 2])
def test_few_blocks_stay_gathered_like_many(blocks):
    found = gathered(plan_of(blocks=blocks, reshard_after_forward=False))
    assert found[LAST_BLOCK] == 2 * (blocks * BLOCK + TABLE + NORM)
    assert found[-4] == 2 * (TABLE + NORM)
    assert found[-3] == 0


def test_later_micro_batches_need_no_flat_copy_of_what_stays_for_all_of_them():
    """With ZeRO-2 parameters stay from one micro-batch to the next, whose forward gathers nothing."""
    recipe = {"global_batch_size": 16}
    assert gathered(plan_of(zero_stage=2))[FORWARD] == 2 * (33 * BLOCK + TABLE + NORM)
    assert gathered(plan_of(zero_stage=2, recipe=recipe))[FORWARD] == 2 * (32 * BLOCK + TABLE + NORM)


def test_a_pipelines_stages_keep_everything_gathered_to_the_end():
    plan = plan_of(pp=2, dp_shard=4, recipe={"global_batch_size": 16})
    for found, tables in ((gathered(plan, 0), TABLE), (gathered(plan, 1), HEAD_MATRIX + NORM)):
        assert found[-4] == found[-3] == 2 * (16 * BLOCK + tables)
        assert found[-2] == 0


def test_one_micro_batchs_gradients_are_reduced_from_fp32_copies():
    """Gradients in bf16 (2 bytes), their fp32 copy that is about to be reduced, and that of the unit before it.

    The order is head, 32 blocks, then table and norm together. Inside its backward a block meets the input of the unit
    before it: of the head, which is the larger, inside the last one, of another block inside the first one.
    """
    found = reduced(plan_of())
    assert found[HEAD] == found[LAST_BLOCK] == 4 * HEAD_MATRIX
    assert found[AFTER_LAST] == (2 + 4) * BLOCK + 4 * HEAD_MATRIX
    assert found[FIRST_BLOCK] == 4 * BLOCK
    assert found[AFTER_FIRST] == (2 + 4 + 4) * BLOCK
    assert found[END] == (2 + 4) * (TABLE + NORM) + 4 * BLOCK
    assert found[FORWARD] == found[LOSS] == 0


def test_a_rank_alone_keeps_the_buffer_that_it_would_send_from():
    """Nothing is being reduced but what backward has just made, in 16 bits."""
    found = reduced(plan_of(dp_shard=1, recipe={"precision": "fp16-mixed"}))
    assert found[LAST_BLOCK] == found[FIRST_BLOCK] == 0
    assert found[AFTER_LAST] == found[AFTER_FIRST] == 2 * BLOCK
    assert found[END] == 2 * (TABLE + NORM)


def test_the_second_block_meets_the_input_of_a_larger_first_one():
    """With a small head the last block counts what the one behind it meets: a block of gradients, not the head's."""
    found = reduced(plan_of(vocab_size=1024))
    assert found[HEAD] == 4 * 1024 * 4096
    assert found[LAST_BLOCK] == 4 * BLOCK
    assert found[AFTER_LAST] == (2 + 4 + 4) * BLOCK
    assert reduced(plan_of(blocks=1, vocab_size=1024))[LAST_BLOCK] == 4 * 1024 * 4096


def test_the_last_reduction_of_a_micro_batch_waits_for_the_first_of_the_next():
    found = reduced(plan_of(recipe={"global_batch_size": 16}))
    assert found[FORWARD] == found[LOSS] == found[LOSS_BACKWARD] == 4 * (TABLE + NORM)
    assert found[HEAD] == 4 * HEAD_MATRIX


def test_exchanged_gradients_travel_in_the_16_bits_they_were_made_in():
    """2 bytes for what was made and 2 for the input before; the head's arrive beside it; no fp32 copy."""
    found = reduced(plan_of(exchange_gradients=True))
    assert found[HEAD] == (2 + 2) * HEAD_MATRIX
    assert found[LAST_BLOCK] == 2 * HEAD_MATRIX
    assert found[AFTER_LAST] == (2 + 2) * BLOCK + 2 * HEAD_MATRIX
    assert found[AFTER_FIRST] == (2 + 2 + 2) * BLOCK
    assert found[END] == (2 + 2 + 2) * (TABLE + NORM)


def test_gradients_that_add_up_over_micro_batches_wait_whole_in_fp32():
    """ZeRO-1 reduces once a step: all gradients in 4 bytes, and 2 for what was just made. Nothing is being reduced."""
    plan = plan_of(zero_stage=1, recipe={"global_batch_size": 16})
    whole = alive(plan, "whole gradients")
    assert whole[FORWARD] == whole[END] == 4 * 8_030_261_248
    found = reduced(plan)
    assert found[HEAD] == found[LAST_BLOCK] == found[FORWARD] == 0
    assert found[AFTER_LAST] == found[AFTER_FIRST] == 2 * BLOCK
    assert found[END] == 2 * (TABLE + NORM)
    assert alive(plan_of(zero_stage=1), "whole gradients")[END] == 0
    assert reduced(plan_of(zero_stage=1))[HEAD] == 4 * HEAD_MATRIX


def test_a_blocks_largest_gradient_is_made_whole():
    made = alive(plan_of(), "weight gradients")
    assert made[LAST_BLOCK] == made[FIRST_BLOCK] == 2 * WIDEST
    assert sum(made) == 4 * WIDEST


def test_routed_experts_gradients_are_made_together():
    """A grouped product makes those of all experts of a rank at once: 3 x 16 x 32 x 64 elements, and 2 bytes."""
    layer = shapes.moe_layer(hidden_size=64, expert_size=32, heads=4, kv_heads=4, experts=16, per_token=2)
    model = shapes.model(layer, num_layers=2, hidden_size=64, vocab_size=1024)
    made = alive(shapes.plan(model, layout=Layout(dp_shard=8)), "weight gradients")
    assert made[LAST_BLOCK] == 2 * 3 * 16 * 32 * 64


def test_the_second_block_counts_where_its_inputs_outweigh_the_token_table():
    """Recomputed from its input (2 x 8 x 4,096 x 4,096 bytes), it gathers the first block ahead and has one block's
    gradients less, of which a rank keeps an eighth in 4 bytes; the table of 1,024 rows is smaller than that."""
    plan = plan_of(vocab_size=1024, recipe={"recompute": "full", "micro_batch_size": 8})
    more = 2 * BLOCK - 4 * BLOCK // 8 + 2 * 8 * 4096 * 4096
    assert gathered(plan)[FIRST_BLOCK] == 2 * (NORM + BLOCK) + more
    later = plan_of(vocab_size=1024, recipe={"recompute": "full", "micro_batch_size": 8, "global_batch_size": 128})
    assert gathered(later)[FIRST_BLOCK] == 2 * (NORM + BLOCK) + more + 4 * BLOCK // 8
    recipe = {"recompute": "full", "micro_batch_size": 8}
    two = plan_of(blocks=2, vocab_size=1024, prefetch_units=8, recipe=recipe)  # one can be gathered ahead
    assert gathered(two)[FIRST_BLOCK] == 2 * (NORM + BLOCK) + more


def test_every_block_but_the_models_first_gathers_blocks_ahead():
    """Behind the last run of equal blocks comes another run, not the token table."""
    narrow = shapes.dense_layer(hidden_size=4096, intermediate_size=7168, heads=32, kv_heads=8)
    wide = shapes.llama_3_8b().layers[0]
    model = replace(shapes.llama_3_8b(), layers=(narrow,) * 4 + (wide,) * 4)
    layout = Layout(dp_shard=8, exchange_gradients=False, spread_vocabulary=False, prefetch_units=2)
    found = gathered(shapes.plan(model, layout=layout))
    first_of_the_wide = FIRST_BLOCK
    assert found[first_of_the_wide] == 2 * (NORM + (1 + 2) * BLOCK)
    assert found[-5] == 2 * (NORM + BLOCK - 3 * 4096 * 7168 + TABLE)


def test_a_tied_table_is_gathered_with_the_rest_of_the_model():
    """Neither freed after forward nor gathered again for the head."""
    layer = shapes.llama_3_8b().layers[0]
    model = shapes.model(layer, num_layers=4, hidden_size=4096, vocab_size=128_256, tied=True)
    plan = shapes.plan(model, layout=Layout(dp_shard=8, exchange_gradients=False))
    found = gathered(plan)
    assert found[LOSS] == 2 * (NORM + TABLE + 2 * BLOCK)
    assert found[HEAD] == 2 * (NORM + TABLE + BLOCK)
    assert found[END] == 2 * (NORM + TABLE)
    assert reduced(plan)[HEAD] == 0
    assert reduced(plan)[END] == (2 + 4) * (TABLE + NORM) + 4 * BLOCK


def test_frozen_tables_of_an_adapted_model_are_gathered_and_not_reduced():
    plan = plan_of(recipe={"adapter": "lora", "lora_rank": 16, "lora_targets": "qv"})
    adapters = 16 * (4096 + 4096) + 16 * (4096 + 1024)
    assert gathered(plan)[AFTER_FIRST] == 2 * NORM
    assert gathered(plan)[HEAD] == 2 * (NORM + BLOCK + adapters + HEAD_MATRIX)
    found = reduced(plan)
    assert found[HEAD] == 0
    (stage,) = pipeline_stages(model=plan.model, layout=plan.layout)
    states = StageContext(plan=plan, stage=stage).states
    assert found[AFTER_FIRST] == (states.compute_bytes + 2 * states.reduce_bytes) * adapters
    assert found[END] == states.reduce_bytes * adapters


def test_the_first_micro_batch_of_gpipe_makes_the_token_tables_gradient_in_16_bits():
    plan = plan_of(pp=2, dp_shard=4, schedule="gpipe", recipe={"global_batch_size": 16})
    stages = pipeline_stages(model=plan.model, layout=plan.layout)
    timeline = StageContext(plan=plan, stage=stages[0]).timeline
    found = [one for one in stage_inventory(plan=plan, stage=stages[0]).tensors if "token table" in one.name]
    assert [(one.num_bytes, one.first_use, one.last_use) for one in found] == [
        (2 * TABLE, timeline.first_backward_end, timeline.first_backward_end)
    ]

"""Activations and logits of whole stages, moment by moment, for Llama 3 8B and 4,096 tokens."""

import pytest

import shapes
from shardwise.layout import Layout
from shardwise.step.layer_placement import pipeline_stages
from shardwise.step.loss import num_own_pieces
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
    alive,
)

HIDDEN = 4096 * 4096 * 2
"""Bytes of the hidden states: the input of a block, which full recomputation keeps alone."""
VOCAB = 128_256
LOGITS = 4096 * VOCAB


def plan_of(engine="fsdp2", *, recipe=None, blocks=32, **layout):
    chosen = {"recompute": "full", "precision": "bf16-mixed"} | (recipe or {})
    return shapes.plan(shapes.llama_3_8b(num_layers=blocks), engine=engine, layout=Layout(**layout), **chosen)


def of_blocks(plan, stage=0):
    """Bytes that one run of blocks keeps."""
    return alive(plan, "kept by blocks[0]", stage=stage)


def test_blocks_keep_their_inputs_until_their_backward():
    found = of_blocks(plan_of(dp_shard=8))
    assert found[FORWARD] == found[LAST_BLOCK] == 32 * HIDDEN
    assert found[AFTER_LAST] == found[FIRST_BLOCK] == HIDDEN
    assert found[AFTER_FIRST] == found[0] == 0


def test_a_block_that_is_recomputed_comes_back_as_it_would_have_been_kept():
    """Beside its input, which never went."""
    whole = of_blocks(plan_of(dp_shard=8, recipe={"recompute": "none"}))
    again = alive(plan_of(dp_shard=8), "recomputed inside blocks[0]")
    assert again[LAST_BLOCK] == again[FIRST_BLOCK] == whole[FIRST_BLOCK] - HIDDEN
    assert whole[FORWARD] == 32 * whole[FIRST_BLOCK]
    assert sum(again) == 2 * again[FIRST_BLOCK]
    assert set(alive(plan_of(dp_shard=8, recipe={"recompute": "none"}), "recomputed inside blocks[0]")) == {0}


def test_of_blocks_that_are_recomputed_in_part_each_keeps_its_own():
    """The first 8 of 32 keep inputs, 24 keep all that one keeps otherwise; nothing comes back in the latter."""
    one = of_blocks(plan_of(dp_shard=8, recipe={"recompute": "none"}))[FIRST_BLOCK]
    plan = plan_of(dp_shard=8, recipe={"recompute_layers": 8})
    assert alive(plan, "kept by blocks[0]")[FORWARD] == 8 * HIDDEN
    assert alive(plan, "kept by blocks[1]")[FORWARD] == 24 * one
    assert set(alive(plan, "recomputed inside blocks[1]")) == {0}
    assert max(alive(plan, "recomputed inside blocks[0]")) == one - HIDDEN


def test_fp32_adapters_under_fsdp1_bring_back_a_block_twice():
    """Slope of peak memory over the micro-batch on fms-acceleration's LoRA runs: a factor of two."""
    recipe = {"adapter": "lora", "recompute": "full"}
    whole = of_blocks(plan_of("fsdp1", dp_shard=8, recipe=recipe | {"recompute": "none"}))[FIRST_BLOCK]
    again = alive(plan_of("fsdp1", dp_shard=8, recipe=recipe), "recomputed inside blocks[0]")
    assert again[LAST_BLOCK] == 2 * whole - HIDDEN


def waiting(schedule, *, batch=16, **layout):
    plan = plan_of("megatron", recipe={"global_batch_size": batch}, pp=4, schedule=schedule, zero_stage=1, **layout)
    name = "activations of other micro-batches in flight"
    return [alive(plan, name, stage=stage)[FORWARD] for stage in range(4)]


def test_stages_of_1f1b_keep_the_activations_of_as_many_micro_batches_as_stages_follow():
    """Narayanan et al., arXiv:2104.04473, section 2.2.1: at most p in flight; GPipe keeps all m."""
    assert waiting("1f1b") == [number * 8 * HIDDEN for number in (3, 2, 1, 0)]
    assert waiting("gpipe") == [15 * 8 * HIDDEN] * 4
    assert waiting("1f1b", batch=2) == [8 * HIDDEN, 8 * HIDDEN, 8 * HIDDEN, 0]


@pytest.mark.parametrize(("blocks", "resident"), [(32, 2), (2, 2), (1, 1)])
def test_offloaded_activations_leave_the_running_block_and_the_next(blocks, resident):
    plan = plan_of(blocks=blocks, dp_shard=8, recipe={"activation_offload": True})
    (stage,) = pipeline_stages(model=plan.model, layout=plan.layout)
    found = of_blocks(plan)
    assert found[FORWARD] == resident * HIDDEN
    assert stage_inventory(plan=plan, stage=stage).host_bytes == (blocks - resident) * HIDDEN
    assert of_blocks(plan_of(blocks=blocks, dp_shard=8))[FORWARD] == blocks * HIDDEN


def test_a_pipeline_offloads_what_every_micro_batch_in_flight_keeps():
    plan = plan_of("megatron", pp=4, zero_stage=1, recipe={"global_batch_size": 16, "activation_offload": True})
    stage = pipeline_stages(model=plan.model, layout=plan.layout)[0]
    assert stage_inventory(plan=plan, stage=stage).host_bytes == 4 * (8 - 2) * HIDDEN


def logits(plan, stage=0):
    return alive(plan, "logits", stage=stage)


@pytest.mark.parametrize(
    ("engine", "settings", "forward", "backward", "head"),
    [
        ("fsdp1", {}, 10, 12, 2),
        ("fsdp1", {"fused_loss": True}, 6, 8, 2),
        ("fsdp2", {"compile": False}, 10, 12, 2),
        ("fsdp1", {"precision": "fp32"}, 8, 12, 4),
    ],
)
def test_logits_hold_their_copies_and_gradients(engine, settings, forward, backward, head):
    """Bytes a logit: 2, its fp32 copy 4 and log-softmax 4; then that with two gradients.

    transformers' output holds 2 more only where a loop keeps it: Accelerate's runs of 1B on two H200 held 34.06 GiB,
    34.60 so and 36.56 with the logits, and LoRA of 8B on one 29.36, 29.36 so and 31.08.

    Fused, an fp32 copy stands beside the logits and becomes their gradient, which is cast. In fp32 there is no copy.
    """
    plan = plan_of(engine, dp_shard=8, recipe=settings)
    found = logits(plan)
    assert found[LOSS : HEAD + 1] == [forward * LOGITS, backward * LOGITS, head * LOGITS]
    assert sum(found) == sum(found[LOSS : HEAD + 1])


def test_tensor_parallelism_divides_megatrons_logits_and_pieces_divide_tokens():
    """In place on one fp32 copy: 6 bytes a logit, then 2 in the head. A third of 4,096 tokens is 1,366."""
    unfused = {"fused_loss": False}
    assert logits(plan_of("megatron", recipe=unfused, tp=4, zero_stage=1))[LOSS] == 6 * LOGITS // 4
    assert logits(plan_of("megatron", recipe=unfused | {"loss_chunks": 3}, tp=4, zero_stage=1))[LOSS] == (
        6 * 1366 * VOCAB // 4
    )


def test_the_heads_input_is_kept_and_in_pieces_its_gradient_too():
    name = "final norm and head input"
    for chunks, copies in ((1, 2), (4, 3)):
        found = alive(plan_of("fsdp1", dp_shard=8, recipe={"loss_chunks": chunks}), name)
        assert found[LOSS] == found[HEAD] == copies * HIDDEN
        assert found[FORWARD] == found[LAST_BLOCK] == 0


def native(*, recipe=None, **layout):
    chosen = {"exchange_gradients": False, "spread_vocabulary": False} | layout
    return plan_of("native", recipe=recipe, **chosen)


def test_our_loss_works_on_pieces_below_512_mib():
    """4,096 x 128,256 logits of 2 bytes are 0.98 GiB: two pieces; eagerly with an fp32 copy beside each."""
    assert logits(native(dp_shard=8))[LOSS] == sum(logits(native(dp_shard=8))) == 2 * 2048 * VOCAB
    assert logits(native(dp_shard=8, recipe={"compile": False}))[LOSS] == (2 + 4) * 2048 * VOCAB
    assert logits(native(dp_shard=8, recipe={"loss_chunks": 8}))[LOSS] == 2 * 512 * VOCAB
    assert logits(native(tp=2, recipe={"loss_chunks": 8}))[LOSS] == 2 * 512 * VOCAB // 2
    assert logits(native(tp=2))[LOSS] == 2 * 4096 * VOCAB // 2


def test_our_loss_makes_the_heads_gradients_with_it():
    plan = native(dp_shard=8)
    weights, inputs = alive(plan, "gradient of the head"), alive(plan, "gradient of the head's input")
    assert weights[LOSS] == weights[HEAD] == 2 * VOCAB * 4096
    assert inputs[LOSS] == inputs[HEAD] == HIDDEN
    assert weights[LAST_BLOCK] == inputs[FORWARD] == 0
    adapted = native(dp_shard=8, recipe={"adapter": "lora"})
    assert set(alive(adapted, "gradient of the head")) == {0}
    norm = alive(native(tp=2, sequence_parallel=True), "final norm and head input")
    assert norm[LOSS] == 2 * HIDDEN // 2 + HIDDEN
    assert alive(native(tp=2), "final norm and head input")[LOSS] == 2 * HIDDEN


def test_a_divided_vocabulary_sees_the_tokens_of_all_ranks():
    """An eighth of the rows and eight times the tokens: their hidden states and the rows in 16 bits beside the loss."""
    plan = plan_of("native", dp_shard=8, exchange_gradients=False, spread_vocabulary=True)
    rows = VOCAB // 8
    assert alive(plan, "head's rows and tokens")[LOSS] == 2 * rows * 4096 + 8 * HIDDEN
    assert set(alive(native(dp_shard=8), "head's rows and tokens")) == {0}
    assert alive(plan, "gradient of the head")[LOSS] == 2 * rows * 4096
    assert alive(plan, "gradient of the head's input")[LOSS] == 8 * HIDDEN
    back = alive(plan, "tokens of all ranks")
    assert back[HEAD] == 8 * HIDDEN
    assert back[END] == 8 * HIDDEN + 2 * rows * 4096
    assert sum(back) == back[HEAD] + back[END]
    pure = plan_of("native", dp_shard=8, spread_vocabulary=True, recipe={"precision": "bf16"})
    assert alive(pure, "head's rows and tokens")[LOSS] == 8 * HIDDEN  # the rows already are in 16 bits
    assert set(alive(native(dp_shard=8), "tokens of all ranks")) == {0}


def test_torchs_last_stage_keeps_what_it_put_out_for_every_earlier_micro_batch():
    recipe = {"global_batch_size": 8}
    name = "outputs of earlier micro-batches"
    found = alive(native(pp=4, recipe=recipe), name, stage=3)
    assert found[FORWARD] == found[-3] == 7 * HIDDEN
    divided = alive(native(pp=4, tp=2, sequence_parallel=True, recipe=recipe), name, stage=3)
    assert divided[FORWARD] == 7 * HIDDEN // 2
    assert set(alive(native(recipe=recipe), name)) == {0}


def test_gpipes_last_stage_keeps_what_every_loss_made_until_backward_ends():
    plan = native(pp=4, schedule="gpipe", recipe={"global_batch_size": 8})
    found = alive(plan, "gradient of the head's input of other micro-batches", stage=3)
    assert found[FORWARD] == found[-4] == 7 * HIDDEN
    assert found[-3] == found[0] == 0


def test_stages_without_the_head_hold_no_logits():
    plan = native(pp=4, recipe={"global_batch_size": 8})
    assert [max(logits(plan, stage)) > 0 for stage in range(4)] == [False, False, False, True]


@pytest.mark.parametrize(("tokens", "pieces"), [(4096, 1), (4097, 2), (8192, 2), (1, 1)])
def test_pieces_of_our_loss_are_at_most_512_mib(tokens, pieces):
    """4,096 x 65,536 logits of 2 bytes are exactly so many."""
    assert num_own_pieces(num_tokens=tokens, vocab_rows=65_536, element_bytes=2) == pieces


@pytest.mark.parametrize(("tp", "each"), [(1, (2, 2, 2)), (2, (4, 4, 4))])
def test_transformer_engines_loss_works_in_place_and_divided_keeps_a_copy(tp, each):
    found = logits(plan_of("megatron", recipe={"fused_loss": True}, tp=tp, zero_stage=1))
    assert found[LOSS : HEAD + 1] == [one * LOGITS // tp for one in each]


@pytest.mark.parametrize(
    ("recipe", "each"),
    [({}, 2), ({"fused_loss": False}, 6), ({"fused_loss_kernel": "te"}, 2), ({"fused_loss_kernel": "native"}, 10)],
)
def test_megatrons_own_fusion_keeps_more_than_its_loss_without_one(recipe, each):
    """NVIDIA/Megatron-LM@0cb4a9c says so of versions before: a fresh buffer of 4 GB for 8k x 128k fp32 logits."""
    found = logits(plan_of("megatron", recipe=recipe, zero_stage=1))
    assert found[LOSS] == found[LOSS + 1] == each * LOGITS


def test_dtensors_loss_holds_more_copies():
    """Traced: one more fp32 copy forward, and the logits stay."""
    found = logits(plan_of("fsdp2", recipe={"compile": False}, tp=2, zero_stage=3, dp_shard=2))
    assert found[LOSS : HEAD + 1] == [one * LOGITS // 2 for one in (14, 18, 4)]


def test_eager_fp32_logits_need_no_copy_of_ours():
    found = logits(native(dp_shard=8, recipe={"precision": "fp32", "compile": False, "loss_chunks": 4}))
    assert found[LOSS] == 4 * 1024 * VOCAB

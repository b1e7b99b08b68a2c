"""Model states of a rank, and what waits for gradients of weights, for Llama 3 8B."""

import pytest

import shapes
from shardwise.layout import Layout
from shardwise.step.held_weights import Division, hold
from shardwise.step.layer_placement import pipeline_stages
from shardwise.step.stage_context import StageContext
from shardwise.step.state_tensors import held_states
from step.moments import (
    AFTER_FIRST,
    AFTER_LAST,
    CHECKPOINT,
    END,
    FIRST_BLOCK,
    FORWARD,
    HEAD,
    LAST_BLOCK,
    LOAD,
    STEP,
    alive,
)

MODEL, BLOCK, MATRICES, TABLE = 8_030_261_248, 218_112_000, 218_103_808, 128_256 * 4096
HIDDEN = 4096 * 4096 * 2


def plan_of(engine="fsdp1", *, recipe=None, **layout):
    chosen = {"precision": "bf16-mixed", "recompute": "none"} | (recipe or {})
    return shapes.plan(shapes.llama_3_8b(), engine=engine, layout=Layout(**{"dp_shard": 8} | layout), **chosen)


@pytest.mark.parametrize(("zero_stage", "parameters", "optimizer"), [(0, 1, 1), (1, 1, 8), (2, 1, 8), (3, 8, 8)])
def test_zero_divides_states_in_turn(zero_stage, parameters, optimizer):
    """Rajbhandari et al., arXiv:1910.02054: optimizer states, then gradients, then parameters, over 8 ranks."""
    plan = plan_of(zero_stage=zero_stage)
    assert alive(plan, "parameters")[LOAD] == 4 * MODEL // parameters
    assert alive(plan, "optimizer")[STEP] == 8 * MODEL // optimizer
    assert alive(plan, "optimizer")[LOAD] == 0
    assert alive(plan, "gradients")[STEP] == 4 * MODEL // (8 if zero_stage >= 2 else 1)
    megatron = plan_of("megatron", zero_stage=min(zero_stage, 1))
    ranks = 1 if zero_stage == 0 else 8
    assert alive(megatron, "optimizer")[LOAD] == pytest.approx(4 * MODEL / ranks, abs=100)
    assert alive(megatron, "optimizer")[STEP] == pytest.approx(12 * MODEL / ranks, abs=300)
    assert alive(megatron, "gradients")[LOAD] == 4 * MODEL


@pytest.mark.parametrize(
    ("optimizer", "each"),
    [("adamw", 8), ("adamw-8bit", 2 * (1 + 4 / 256)), ("lion", 4), ("sgd-momentum", 4), ("sgd", 0)],
)
def test_bytes_of_moments(optimizer, each):
    """4 each; in 8 bits 1 and a scale of 4 for 256 (Dettmers et al., arXiv:2110.02861)."""
    found = alive(plan_of(recipe={"optimizer": optimizer}), "optimizer")
    assert found[STEP] == found[CHECKPOINT] == pytest.approx(each * MODEL / 8, abs=40)


def test_muon_keeps_one_moment_of_hidden_matrices_and_two_of_the_rest():
    found = alive(plan_of(recipe={"optimizer": "muon"}, zero_stage=0), "optimizer")
    assert found[STEP] == 4 * (32 * MATRICES + 2 * (MODEL - 32 * MATRICES))


def test_adafactor_keeps_a_row_and_a_column_of_every_matrix():
    """Of q, o: 8,192; k, v: 5,120; three of 18,432; two norms: 90,112 numbers a block. Tables as matrices, too."""
    found = alive(plan_of(recipe={"optimizer": "adafactor"}, zero_stage=0), "optimizer")
    block = 2 * 8192 + 2 * 5120 + 3 * 18_432 + 2 * 4096
    assert found[STEP] == 4 * (32 * block + 2 * (128_256 + 4096) + 4096)


def test_experts_matrices_count_once_for_the_largest_and_all_for_muon():
    layer = shapes.moe_layer(hidden_size=64, expert_size=32, heads=4, kv_heads=4, experts=16, per_token=2)
    attention = 4 * 64 * 64
    whole = hold(layer.weights, Division.of(Layout()), is_sharded_by_tensor=False)
    assert (whole.expert, whole.dense) == (3 * 16 * 32 * 64, attention + 16 * 64 + 2 * 64)
    assert whole.full == whole.shard == whole.expert + whole.dense
    assert whole.largest_matrix == 64 * 64
    assert whole.matrices == attention + 16 * 64 + 3 * 32 * 64
    divided = hold(layer.weights, Division.of(Layout(dp_shard=8, ep=4)), is_sharded_by_tensor=True)
    assert divided.matrices == whole.matrices
    assert divided.expert == whole.expert // 4
    assert divided.expert_shard == whole.expert // 8
    assert divided.shard == divided.expert_shard + divided.dense_shard


def test_tensor_parallel_ranks_cut_rows_of_columns_first():
    """1,000 rows of 8 on 3 tensor-parallel ranks: 334, of which one of 5 keeps 67. Columns cut leave the rows whole."""
    weights = shapes.model(shapes.llama_3_8b().layers[0], num_layers=1, hidden_size=8, vocab_size=1000).head_weights
    held = hold(weights, Division.of(Layout(tp=3, dp_shard=5)), is_sharded_by_tensor=True)
    assert held.dense_shard == 67 * 8
    layer = shapes.llama_3_8b().layers[0]
    down = tuple(one for one in layer.weights if "down_proj" in one.name)
    assert hold(down, Division.of(Layout(tp=2, dp_shard=3)), is_sharded_by_tensor=True).dense_shard == 1366 * 7168


def offloaded(where, **recipe):
    plan = plan_of("deepspeed", recipe={"offload": where, **recipe})
    (stage,) = pipeline_stages(model=plan.model, layout=plan.layout)
    context = StageContext(plan=plan, stage=stage)
    return plan, held_states(context), context.states


def test_offload_moves_states_to_the_host_with_a_half_more_for_staging():
    """DeepSpeed's ``additional_buffer_factor`` of 1.5. fp32 weights and moments 12 bytes, 2 of 16-bit gradients."""
    shard = MODEL // 8
    plan, held, states = offloaded("optimizer")
    assert held.host.optimizer_bytes == pytest.approx(1.5 * 12 * shard, rel=1e-6)
    assert held.host.gradients_bytes == pytest.approx(states.gradient_bytes * shard, rel=1e-6)
    assert (held.host.parameters_bytes, held.nvme_bytes) == (0, 0)
    assert alive(plan, "optimizer")[STEP] == 0
    assert alive(plan, "parameters")[STEP] == pytest.approx(2 * shard, rel=1e-6)
    plan, held, _ = offloaded("parameters")
    assert held.host.parameters_bytes == pytest.approx(2 * shard, rel=1e-6)
    assert held.host.total_bytes == (held.host.parameters_bytes + held.host.gradients_bytes + held.host.optimizer_bytes)
    assert alive(plan, "parameters")[STEP] == alive(plan, "gradients")[STEP] == 0
    plan, held, _ = offloaded("nvme")
    assert held.nvme_bytes == pytest.approx(12 * shard, rel=1e-6)
    assert held.host.optimizer_bytes == 0
    assert held.host.gradients_bytes == pytest.approx((1 + 1.5) * states.gradient_bytes * shard, rel=1e-6)
    plan, held, _ = offloaded("parameters", adapter="lora", lora_targets="qv")
    adapters = 32 * 16 * (2 * 4096 + 4096 + 1024)
    assert held.host.parameters_bytes == pytest.approx(2 * (MODEL + adapters) / 8, rel=1e-6)
    plan, held, _ = offloaded("none")
    assert (held.host.total_bytes, held.nvme_bytes) == (0, 0)


def test_an_update_needs_a_copy_of_gradients_in_fp32_or_of_what_it_updates():
    """DeepSpeed casts its 16-bit gradients; torch's ``foreach`` makes one temporary as large as the parameters."""
    deepspeed = [f"{unit} gradients in fp32" for unit in ("blocks[0]", "embedding and head")]
    cast = alive(plan_of("deepspeed"), *deepspeed)
    assert cast[STEP] == sum(cast) == pytest.approx(4 * MODEL / 8, rel=1e-6)
    torch = [f"{unit} optimizer temporaries" for unit in ("blocks[0]", "embedding and head")]
    made = alive(plan_of("fsdp1"), *torch)
    assert made[STEP] == sum(made) == 4 * MODEL // 8
    assert set(alive(plan_of("fsdp1", recipe={"fused_optimizer": True}), *torch)) == {0}


def test_frozen_weights_are_kept_in_two_bytes_four_or_four_bits():
    """NF4 with double quantisation: 0.127 bits for scales (Dettmers et al., arXiv:2305.14314, section 3)."""
    names = [f"{unit} frozen parameters" for unit in ("blocks[0]", "embedding and head")]
    for zero_stage, ranks in ((0, 1), (3, 8)):
        plan = plan_of(recipe={"adapter": "lora"}, zero_stage=zero_stage)
        assert alive(plan, *names)[LOAD] == 2 * MODEL // ranks
    assert alive(plan_of(recipe={"adapter": "lora", "precision": "fp32"}), *names)[LOAD] == 4 * MODEL // 8
    packed = alive(plan_of(recipe={"adapter": "qlora"}, zero_stage=0), names[0])[LOAD]
    assert packed * 8 / (32 * BLOCK) == pytest.approx(4 + 0.127, abs=1e-3)
    assert alive(plan_of(recipe={"adapter": "qlora"}, zero_stage=0), names[1])[LOAD] == 2 * (2 * TABLE + 4096)


def test_gradients_appear_when_their_units_backward_is_done():
    """Of whole fp32 gradients without buffers: the head's behind its own backward, a block's behind its own."""
    found = alive(plan_of(zero_stage=0, dp_shard=1), "gradients")
    assert found[HEAD] == 0
    assert found[LAST_BLOCK] == 4 * TABLE
    assert found[AFTER_LAST] == 4 * (TABLE + BLOCK)
    assert found[FIRST_BLOCK] == 4 * (TABLE + 31 * BLOCK)
    assert found[AFTER_FIRST] == 4 * (TABLE + 32 * BLOCK)
    assert found[END] == found[STEP] == 4 * MODEL
    assert found[CHECKPOINT] == found[FORWARD] == 0


def test_gradients_in_the_dtype_of_the_weights_are_there_in_the_heads_backward():
    found = alive(plan_of(zero_stage=0, dp_shard=1, recipe={"precision": "bf16"}), "gradients")
    assert found[HEAD] == found[LAST_BLOCK] == 2 * TABLE


def test_fsdps_tables_gradients_come_with_the_root_unit():
    found = alive(plan_of(), "gradients")
    assert found[HEAD] == found[LAST_BLOCK] == 0
    assert found[AFTER_LAST] == 4 * BLOCK // 8
    assert found[END] == 4 * MODEL // 8


def test_accumulated_gradients_are_there_from_the_first_micro_batch_on():
    found = alive(plan_of(recipe={"global_batch_size": 16}), "gradients")
    assert found[FORWARD] == found[STEP] == 4 * MODEL // 8
    assert found[LOAD] == found[CHECKPOINT] == 0


GRADIENTS = 2 * 4096 * (2 * 4096 + 4096 + 1024 + 1024 + 4096 + 2 * 14_336 + 4096)
"""Of what two norms and seven products of a block put out for 4,096 tokens, in 16 bits."""


def zb_h1(*, recipe=None, **layout):
    chosen = {"recompute": "full", "global_batch_size": 16} | (recipe or {})
    return plan_of("native", recipe=chosen, dp_shard=1, pp=4, schedule="zb-h1", **layout)


def test_zero_bubble_stages_keep_gradients_of_outputs_of_as_many_micro_batches_as_stages_precede():
    """Eight blocks each; the last stage also those of norm and logits with the inputs of both (3 T h and T V)."""
    head = 3 * HIDDEN + 2 * 4096 * 128_256
    name = "waiting for gradients of weights of other micro-batches"
    found = [alive(zb_h1(), name, stage=stage)[FORWARD] for stage in range(4)]
    assert found == [0, 8 * GRADIENTS, 2 * 8 * GRADIENTS, 3 * (8 * GRADIENTS + head)]
    assert alive(zb_h1(), name, stage=3)[END - 1] == found[3]
    assert alive(zb_h1(), name, stage=3)[END] == 0


def test_a_divided_head_waits_as_what_its_loss_made():
    """The hidden states' gradient, the head's own (half of its rows, 2 bytes), and norm, input and its gradient."""
    name = "waiting for gradients of weights"
    for sequence_parallel in (False, True):
        plan = zb_h1(tp=2, sequence_parallel=sequence_parallel)
        rest = 3 * HIDDEN // (2 if sequence_parallel else 1)
        found = alive(plan, name, stage=3)
        assert found[HEAD] == 0
        assert found[LAST_BLOCK] == found[END - 1] == HIDDEN + 2 * TABLE // 2 + rest
        assert found[END] == 0
    frozen = zb_h1(tp=2, recipe={"adapter": "lora"})
    assert alive(frozen, name, stage=3)[LAST_BLOCK] == HIDDEN + 3 * HIDDEN


def test_what_the_running_micro_batch_kept_waits_from_each_blocks_backward_to_the_end():
    """A block's input, which recomputation keeps, and the gradients of its outputs."""
    found = alive(zb_h1(), "waiting for gradients of weights of blocks[0]", stage=1)
    each = HIDDEN + GRADIENTS
    assert [found[-4], max(found)] == [8 * each, 8 * each]
    assert found[-3] == 0
    first, after_first = 2, 3  # this stage has no head: load, forward, then backward of its last block
    assert (found[first], found[after_first]) == (0, each)
    assert max(alive(zb_h1(), "waiting for gradients of weights of blocks[0]", stage=0)) == 0


def test_of_two_chunks_half_of_a_rank_waits():
    """The running micro-batch is one chunk's."""
    plan = zb_h1(vpp=2)
    head = alive(plan, "waiting for gradients of weights", stage=3)
    assert head[LAST_BLOCK] == (3 * HIDDEN + 2 * 4096 * 128_256) // 2
    found = alive(plan, "waiting for gradients of weights of blocks[0]", stage=1)
    assert max(found) == 8 * (HIDDEN + GRADIENTS) // 2
    others = alive(plan, "waiting for gradients of weights of other micro-batches", stage=1)
    assert others[FORWARD] == 8 * GRADIENTS // 2


def test_eight_of_32_recomputed_blocks_are_a_quarter():
    plan = plan_of(recipe={"recompute": "full", "recompute_layers": 8})
    (stage,) = pipeline_stages(model=plan.model, layout=plan.layout)
    context = StageContext(plan=plan, stage=stage)
    assert context.recomputed_fraction(context.held_runs[0].layer) == 8 / 32

"""Saved tensors of one block against published coefficients of s b h."""

from dataclasses import replace

import pytest

from shapes import dense_layer, moe_layer
from shardwise.model import MambaSpec
from shardwise.step.saved_activations import Adapter, BackwardContext, BlockContext, backward_temporaries, saved_tensors


def context(**changes):
    base = BlockContext(
        hidden_size=4096,
        tokens=512,
        seq_len=512,
        tp=1,
        expert_tp=1,
        is_sequence_parallel=False,
        element_bytes=2,
        residual_bytes=2,
        is_eager_attention=False,
        has_fused_softmax=True,
        has_fused_norm=True,
        has_fused_activation=False,
        saves_gathered_input=False,
        attention_dropout=False,
        hidden_dropout=False,
        saves_attention_input=True,
        casts_inputs_separately=False,
        saves_mlp_input=True,
    )
    return replace(base, **changes)


def coefficient(layer, ctx):
    """Bytes per (token, hidden element), without the per-token statistics."""
    total = sum(t.num_bytes for t in saved_tensors(layer, ctx) if not t.name.endswith(("statistics", "log_sum_exp")))
    return total / (ctx.tokens * ctx.hidden_size)


def gpt_layer():
    return dense_layer(hidden_size=4096, intermediate_size=16384, heads=32, kv_heads=32, is_gated=False)


def test_a_gpt_block_without_dropout_keeps_32_bytes():
    """Measured with saved-tensor hooks: 32.1 including log-sum-exp and statistics."""
    assert coefficient(gpt_layer(), context()) == 32


def test_dropout_masks_make_it_the_published_34():
    """Korthikanti et al., arXiv:2205.05198, equation 1 without the attention term."""
    assert coefficient(gpt_layer(), context(hidden_dropout=True)) == 34


def test_eager_attention_with_dropout_adds_5_a_s_over_h():
    """The same equation's 5 a s / h: here 5 * 32 * 512 / 4096 = 20."""
    eager = context(hidden_dropout=True, attention_dropout=True, is_eager_attention=True)
    assert coefficient(gpt_layer(), eager) == 34 + 20


def test_sequence_parallelism_divides_everything_by_tp():
    """Equation 4: (s b h / t) (34 + 5 a s / h)."""
    eager = context(hidden_dropout=True, attention_dropout=True, is_eager_attention=True)
    sharded = replace(eager, tp=4, is_sequence_parallel=True)
    assert coefficient(gpt_layer(), sharded) == pytest.approx((34 + 20) / 4)


def test_tensor_parallelism_alone_leaves_ten_bytes_whole():
    """Equation 2: s b h (10 + 24 / t + 5 a s / (h t))."""
    eager = context(hidden_dropout=True, attention_dropout=True, is_eager_attention=True, tp=4)
    assert coefficient(gpt_layer(), eager) == pytest.approx(10 + 24 / 4 + 20 / 4)


@pytest.mark.parametrize(
    ("fused_norm", "fused_activation", "expected"), [(True, False, 41.0), (False, False, 49.0), (True, True, 34.0)]
)
def test_a_llama_3_8b_block_keeps_41_or_49_or_34_bytes(fused_norm, fused_activation, expected):
    """On an H100 with torch 2.11: 41.03 with torch's RMSNorm, 49.15 with transformers', 34.03 compiled."""
    layer = dense_layer(hidden_size=4096, intermediate_size=14336, heads=32, kv_heads=8)
    ctx = context(has_fused_norm=fused_norm, has_fused_activation=fused_activation)
    assert coefficient(layer, ctx) == expected


def test_eager_autocast_keeps_51_and_transformers_59_bytes():
    """Measured on an H100 without the 26.0 of cast weights: 51.03 with torch's RMSNorm, 59.28 with transformers'."""
    layer = dense_layer(hidden_size=4096, intermediate_size=14336, heads=32, kv_heads=8)
    autocast = context(residual_bytes=4, casts_inputs_separately=True)
    assert coefficient(layer, autocast) == 51
    assert coefficient(layer, replace(autocast, has_fused_norm=False)) == 59


def test_a_frozen_base_needs_no_inputs_for_weight_gradients():
    layer = dense_layer(hidden_size=4096, intermediate_size=14336, heads=32, kv_heads=8)
    frozen = context(saves_attention_input=False, saves_mlp_input=False)
    saved = {tensor.name for tensor in saved_tensors(layer, frozen)}
    assert "norm_outputs" not in saved
    assert "mlp.down_input" not in saved


def test_routed_tokens_do_not_fall_with_expert_parallelism():
    """Each rank receives T K tokens however many share the experts: 2 * 11 * 3 * (2 h + 4 f_e) bytes, and scores."""
    layer = moe_layer(hidden_size=64, expert_size=32, heads=4, kv_heads=4, experts=16, per_token=3)
    ctx = context(hidden_size=64, tokens=11, has_fused_activation=True)
    experts = sum(t.num_bytes for t in saved_tensors(layer, ctx) if t.name.startswith(("experts", "router")))
    assert experts == 2 * 11 * 3 * (64 + 32 + 2 * 32 + 64) + 4 * 11 * 16


def test_backward_holds_two_widths_and_the_residual_gradient():
    layer = dense_layer(hidden_size=4096, intermediate_size=14336, heads=32, kv_heads=8)
    assert backward_temporaries(layer, context(), BackwardContext()) == 2 * 512 * 4096 + 2 * 2 * 512 * 14336


def test_a_mamba_block_keeps_its_projections_step_sizes_and_scan():
    """A token of mamba-130m: two projections, a convolution, step sizes, what makes them, B, C, and two outputs."""
    width, rank, state = 1536, 48, 16
    mixer = MambaSpec(intermediate_size=width, state_size=state, conv_kernel=4, time_step_rank=rank)
    layer = replace(gpt_layer(), mixer=mixer, feed_forward=None)
    kept = sum(t.num_bytes for t in saved_tensors(layer, context(hidden_size=768)) if t.name.startswith("mamba."))
    assert kept == 2 * 512 * (2 * width + width + width + rank + state + state + 2 * width)
    halved = sum(t.num_bytes for t in saved_tensors(layer, context(tp=2)) if t.name.startswith("mamba."))
    assert halved == 2 * 512 * (6 * width // 2 + rank + state + state)


def by_name(layer, ctx):
    return {tensor.name: tensor.num_bytes for tensor in saved_tensors(layer, ctx)}


def llama_layer():
    return dense_layer(hidden_size=4096, intermediate_size=14336, heads=32, kv_heads=8)


@pytest.mark.parametrize("has_fused_activation", [True, False])
@pytest.mark.parametrize("make", [llama_layer, gpt_layer])
def test_tensor_and_sequence_parallelism_together_divide_all_of_a_block(make, has_fused_activation):
    ctx = context(has_fused_activation=has_fused_activation, has_fused_norm=False, hidden_dropout=True)
    layer = make()
    divided = by_name(layer, replace(ctx, tp=4, is_sequence_parallel=True))
    assert {name: 4 * num_bytes for name, num_bytes in divided.items()} == by_name(layer, ctx)


def test_a_statistic_of_a_norm_and_a_head_is_one_fp32_number():
    saved = by_name(llama_layer(), context())
    assert saved["norm_statistics"] == 2 * 4 * 512
    assert saved["attention.log_sum_exp"] == 32 * 4 * 512


def test_dtensor_keeps_the_gathered_input_of_products_and_not_of_norms():
    """The norms' outputs are whole on all four ranks; their inputs and the residual stream are divided."""
    divided = by_name(llama_layer(), context(tp=4, is_sequence_parallel=True, saves_gathered_input=True))
    assert divided["norm_outputs"] == 2 * 2 * 512 * 4096
    assert divided["input"] == 2 * 512 * 4096 // 4


def moe_with(shared=0, *, is_gated=True):
    layer = moe_layer(hidden_size=64, expert_size=32, heads=4, kv_heads=4, experts=16, per_token=3)
    spec = replace(layer.feed_forward, shared_intermediate_size=shared, is_gated=is_gated)
    return replace(layer, feed_forward=spec)


def experts(layer, **changes):
    saved = by_name(layer, context(hidden_size=64, tokens=16, **changes))
    return {name: num_bytes for name, num_bytes in saved.items() if name.startswith(("experts", "router"))}


def test_what_experts_keep_of_each_copy_of_a_token():
    """48 copies of 2 bytes: 64 in, 32 before SwiGLU, 32 up and 32 of the activated gate, 32 into the last product."""
    assert experts(moe_with()) == {
        "experts.dispatched_input": 48 * 64 * 2,
        "experts.pre_activation": 48 * 32 * 2,
        "experts.intermediates": 48 * (32 + 32) * 2,
        "experts.down_input": 48 * 32 * 2,
        "experts.output": 48 * 64 * 2,
        "router.scores": 4 * 16 * 16,
    }
    assert experts(moe_with(), has_fused_activation=True)["experts.intermediates"] == 48 * 32 * 2
    assert "experts.intermediates" not in experts(moe_with(is_gated=False))
    assert "experts.output" not in experts(moe_with(), keeps_expert_outputs=False)
    assert experts(moe_with(), copies_exchanged_rows=True)["experts.reordered_input"] == 2 * 48 * 64 * 2


def test_experts_that_run_kernel_by_kernel_keep_the_activated_gate_and_the_rows_that_are_weighted():
    """A copy of 64 and 32 numbers: gate and up that the product reads, and the rows whose weights have a gradient."""
    eager = experts(moe_with(), has_fused_activation=True, runs_experts_eagerly=True)
    assert eager["experts.intermediates"] == 48 * (32 + 32) * 2
    assert eager["experts.output"] == 48 * 64 * 2


def test_selective_recomputation_keeps_exchanged_rows_and_no_grouped_product():
    """Lists of what to keep hold plain products and exchanges; without an exchange nothing of routed rows stays."""

    def kept(**changes):
        saved = saved_tensors(moe_with(), context(hidden_size=64, tokens=16, **changes))
        return {
            tensor.name: tensor.num_bytes for tensor in saved if tensor.is_routed and tensor.kept_by_operation_policy
        }

    assert kept() == {}
    rows = 48 * 64 * 2
    assert kept(keeps_exchanged_rows=True) == {"experts.dispatched_input": rows, "experts.output": rows}


def test_a_divided_sequence_sends_fewer_tokens_to_experts_and_a_divided_expert_is_narrower():
    whole = experts(moe_with())
    divided = experts(moe_with(), tp=4, is_sequence_parallel=True)
    assert {name: 4 * num_bytes for name, num_bytes in divided.items()} == whole
    narrow = experts(moe_with(), expert_tp=2)
    for name in ("pre_activation", "intermediates", "down_input"):
        assert 2 * narrow[f"experts.{name}"] == whole[f"experts.{name}"]
    assert narrow["experts.dispatched_input"] == whole["experts.dispatched_input"]


def test_shared_experts_keep_what_a_dense_feed_forward_does():
    saved = by_name(moe_with(shared=48), context(hidden_size=64, tokens=16))
    shared = {name: num_bytes for name, num_bytes in saved.items() if name.startswith("shared_experts")}
    assert sum(shared.values()) == 4 * 2 * 16 * 48
    assert set(by_name(moe_with(), context(hidden_size=64, tokens=16))).isdisjoint(shared)


def test_an_adapter_keeps_its_narrow_products_and_dropout_its_inputs_with_masks():
    """Rank 16 beside q and v: 2 x 16 numbers a token. Dropout adds two inputs of 4,096 numbers of 2 bytes and 1.

    Beside all seven matrices, tensor parallelism divides the inputs of o (4,096) and down (14,336) and no others.
    """

    def kept(targets, **changes):
        adapter = Adapter(rank=16, targets=targets, has_dropout=changes.pop("has_dropout", False))
        return by_name(llama_layer(), context(adapter=adapter, **changes))["adapters"]

    assert kept("qv") == 512 * 2 * 16 * 2
    assert kept("qv", has_dropout=True) == 512 * (2 * 16 * 2 + 2 * 4096 * 3)
    inputs = 5 * 4096 + (4096 + 14336) // 2
    assert kept("all-linear", has_dropout=True, tp=2) == 512 * (7 * 16 * 2 + inputs * 3)


def test_cross_attention_adds_a_norm_a_residual_and_a_mask():
    """Everything an attention keeps, once more, and of the stream its input, its norm's output and a byte of mask."""
    layer = replace(gpt_layer(), cross_attention=gpt_layer().mixer, num_norms=3)
    ctx = context(hidden_dropout=True)
    assert coefficient(layer, ctx) - coefficient(gpt_layer(), ctx) == 2 * 4 + 2 + 2 + 1


def test_megatrons_cross_attention_has_a_norm_of_its_own():
    layer = replace(gpt_layer(), cross_attention=gpt_layer().mixer, num_norms=3)
    saved = by_name(layer, context(fuses_norms=True))
    for name in ("attention", "cross_attention", "feed_forward"):
        assert saved[f"{name}.norm_output"] == 2 * 512 * 4096
    eight_bits = by_name(layer, context(fuses_norms=True, has_fp8_inputs=True))
    for name in ("attention", "cross_attention", "feed_forward"):
        assert eight_bits[f"{name}.norm_output"] == 512 * 4096


def test_a_router_keeps_16_bits_and_a_shared_expert_8_beside_them():
    """Megatron-LM ``core/transformer/moe/router.py``: routed experts read copies, which are dispatched first."""

    def norm(shared, *, has_fp8_inputs):
        ctx = context(hidden_size=64, tokens=16, fuses_norms=True, has_fp8_inputs=has_fp8_inputs)
        return by_name(moe_with(shared), ctx)["feed_forward.norm_output"]

    assert (
        norm(0, has_fp8_inputs=True) == norm(0, has_fp8_inputs=False) == norm(48, has_fp8_inputs=False) == 2 * 16 * 64
    )
    assert norm(48, has_fp8_inputs=True) == (2 + 1) * 16 * 64


def latent_layer():
    spec = replace(
        llama_layer().mixer,
        kind="mla",
        q_lora_rank=1536,
        kv_lora_rank=512,
        qk_rope_head_dim=64,
        head_dim=192,
        v_head_dim=128,
    )
    return replace(llama_layer(), mixer=spec)


def test_latent_attention_keeps_compressed_rows_before_and_after_their_norms():
    """DeepSeek-V3's ranks: 1,536 + 512 numbers normed, and 64 that rotate; keys and values of all 32 heads."""
    saved = by_name(latent_layer(), context())
    assert saved["attention.latents"] == 2 * 512 * (1536 + 512 + 64)
    assert saved["attention.normed_latents"] == 2 * 512 * (1536 + 512)
    assert saved["attention.query"] == saved["attention.key"] == 2 * 512 * 32 * 192
    assert saved["attention.value"] == saved["attention.output"] == 2 * 512 * 32 * 128
    divided = by_name(latent_layer(), context(tp=4, is_sequence_parallel=True))
    assert 4 * divided["attention.latents"] == saved["attention.latents"]
    assert 4 * divided["attention.normed_latents"] == saved["attention.normed_latents"]
    in_8_bits = by_name(latent_layer(), context(fuses_norms=True, has_fp8_inputs=True))
    assert in_8_bits["attention.normed_latents"] == 512 * (1536 + 512)
    assert in_8_bits["attention.norm_output"] == 2 * 512 * 4096  # both down projections keep 8 bits of their own


def test_our_context_parallelism_keeps_keys_and_values_of_all_ranks_and_two_pieces_of_output():
    own, whole = by_name(llama_layer(), context()), by_name(llama_layer(), context(gathered_sequence_ratio=4))
    more = {name: num_bytes / own[name] for name, num_bytes in whole.items() if num_bytes != own[name]}
    assert more == {"attention.key": 4, "attention.value": 4, "attention.output": 2}


def test_a_rank_has_at_least_one_key_head():
    saved = by_name(llama_layer(), context(tp=16))
    assert saved["attention.key"] == saved["attention.value"] == 2 * 512 * 128
    assert saved["attention.query"] == 2 * 512 * 2 * 128


def test_norms_of_queries_and_keys_keep_their_inputs():
    layer = replace(llama_layer(), mixer=replace(llama_layer().mixer, has_qk_norm=True))
    assert by_name(layer, context())["attention.qk_norm_inputs"] == 2 * 512 * (32 + 8) * 128


@pytest.mark.parametrize(
    ("changes", "each"),
    [
        ({"element_bytes": 4}, 4),
        ({"has_fused_softmax": False}, 4 + 2),
        ({}, 2),
        ({"attention_dropout": True}, 2 + 1 + 2),
    ],
)
def test_scores_are_kept_once_more_in_fp32_unless_one_kernel_makes_softmax(changes, each):
    """In 16 bits 2 bytes a score, 4 of the fp32 copy; dropout a mask of 1 and its output of 2 (Korthikanti's 5)."""
    saved = by_name(llama_layer(), context(is_eager_attention=True, **changes))
    assert saved["attention.scores"] == each * 512 * 512 * 32


def test_a_fused_softmax_keeps_the_scores_inside_a_window_alone():
    layer = replace(llama_layer(), mixer=replace(llama_layer().mixer, sliding_window=128))
    saved = by_name(layer, context(is_eager_attention=True))
    assert saved["attention.scores"] == 2 * 512 * 128 * 32
    unfused = by_name(layer, context(is_eager_attention=True, has_fused_softmax=False))
    assert unfused["attention.scores"] == (2 + 4) * 512 * 512 * 32


def test_parallel_branches_share_a_norm_and_have_one_residual():
    """GPT-J: attention and feed-forward read the same norm's output."""
    layer = replace(gpt_layer(), is_parallel=True, num_norms=1)
    saved = by_name(layer, context())
    assert saved["norm_outputs"] == 2 * 512 * 4096
    assert "feed_forward.residual" not in saved
    fused = by_name(layer, context(fuses_norms=True))
    assert "feed_forward.norm_output" not in fused
    assert fused["attention.norm_output"] == 2 * 512 * 4096


def test_a_compiled_block_of_ours_keeps_no_norm_unless_ranks_gather_it():
    """Kernels of backward make norms and SwiGLU's product again; what tensor-parallel ranks gathered stays."""
    saved = by_name(llama_layer(), context(remakes_elementwise=True))
    assert "norm_outputs" not in saved
    assert "mlp.down_input" not in saved
    assert by_name(llama_layer(), context(remakes_elementwise=True, tp=2))["norm_outputs"] == 2 * 2 * 512 * 4096
    assert "experts.down_input" in by_name(moe_with(), context(remakes_elementwise=True))


def test_backward_of_every_kind_of_block():
    """The residual gradient (2 T h) and, widest, one plain activation, experts' two gradients and their input's, or
    softmax and its gradient; tensor parallelism divides all but the residual stream."""
    stream = 2 * 512 * 4096
    assert backward_temporaries(gpt_layer(), context(), BackwardContext()) == stream + 2 * 512 * 16384
    assert backward_temporaries(gpt_layer(), context(tp=2), BackwardContext()) == stream + 2 * 512 * 16384 // 2
    sequence = context(tp=2, is_sequence_parallel=True)
    assert backward_temporaries(gpt_layer(), sequence, BackwardContext()) == (stream + 2 * 512 * 16384) // 2
    norms = BackwardContext(num_norms_remade=2)
    assert backward_temporaries(gpt_layer(), context(), norms) == 3 * stream + 2 * 512 * 16384
    small = {"hidden_size": 64, "tokens": 16}
    routed = 2 * 48 * (2 * 32 + 64)
    assert backward_temporaries(moe_with(), context(**small), BackwardContext()) == 2 * 16 * 64 + routed
    halved = context(tp=2, is_sequence_parallel=True, **small)
    assert backward_temporaries(moe_with(), halved, BackwardContext()) == (2 * 16 * 64 + routed) // 2
    narrow = backward_temporaries(moe_with(), context(expert_tp=2, **small), BackwardContext())
    assert narrow == 2 * 16 * 64 + 2 * 48 * (32 + 64)
    long = context(is_eager_attention=True, seq_len=8192)
    assert backward_temporaries(gpt_layer(), long, BackwardContext()) == stream + 2 * 2 * 512 * 32 * 8192
    assert backward_temporaries(gpt_layer(), replace(long, tp=4), BackwardContext()) == (
        stream + 2 * 2 * 512 * 32 * 8192 // 4
    )

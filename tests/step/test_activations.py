"""Saved tensors of one block against published coefficients of s b h."""

from dataclasses import replace

import pytest

from shapes import dense_layer, moe_layer
from shardwise.model import MambaSpec
from shardwise.step.activations import BackwardContext, BlockContext, backward_temporaries, saved_tensors


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
        expands_key_values=False,
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

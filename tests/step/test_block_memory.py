"""Bytes of one block that a backward pass in halves keeps."""

import pytest

from shapes import dense_layer, moe_layer
from shardwise.step.block_memory import block_memory
from shardwise.step.saved_activations import BlockContext, SelectiveRule
from step.test_saved_activations import context


def test_tensor_parallelism_divides_the_gradients_of_outputs_of_column_products_alone():
    """Of a Llama-3-8B block tp 2 divides q, k, v, gate and up; the outputs of o and down and both norms are whole."""
    layer = dense_layer(hidden_size=4096, intermediate_size=14336, heads=32, kv_heads=8)
    divided = 4096 + 1024 + 1024 + 14336 + 14336
    whole = 4 * 4096

    def gradients(block: BlockContext) -> int:
        return block_memory(layer, block).gradients

    assert gradients(context()) == 2 * 512 * (divided + whole)
    assert gradients(context(tp=2)) == 2 * 512 * (divided // 2 + whole)


def llama(**changes):
    return block_memory(
        dense_layer(hidden_size=4096, intermediate_size=14336, heads=32, kv_heads=8), context(**changes)
    )


@pytest.mark.parametrize(("is_compiled", "published"), [(False, 15.5), (True, 13.5)])
def test_torchtitans_policy_keeps_what_was_measured_on_an_h100(is_compiled, published):
    """Bytes a token and hidden element of a Llama-3-8B block; log-sum-exp is 4 x 32 / 4,096 of one more."""
    memory = llama(selective=SelectiveRule(is_compiled=is_compiled))
    assert memory.kept_selectively / (512 * 4096) == pytest.approx(published + 4 * 32 / 4096)
    assert memory.revived_selectively == memory.whole - memory.kept_selectively
    assert memory.input == 2 * 512 * 4096
    assert memory.dense == memory.whole


def test_core_attention_drops_scores_alone():
    rule = SelectiveRule(policy="core_attention")
    memory = llama(is_eager_attention=True, selective=rule)
    assert memory.revived_selectively == 2 * 512 * 512 * 32


def test_modules_come_back_one_after_the_other():
    """The feed-forward (3 x 14,336 numbers) beside the scores of unfused attention (32 x 512), which is less."""
    rule = SelectiveRule(modules=("mlp", "core_attn"))
    changes = {"is_eager_attention": True, "has_fused_activation": True}
    memory = llama(selective=rule, **changes)
    mlp, scores = 2 * 512 * 3 * 14_336, 2 * 512 * 512 * 32
    assert memory.whole - memory.kept_selectively == mlp + scores
    assert memory.revived_selectively == max(mlp, scores)


def test_routed_experts_are_told_apart_and_their_outputs_have_gradients_of_every_copy():
    """11 tokens, 3 experts each of 32: gate and up of every copy, and 64 out; 16 scores; attention and two norms."""
    layer = moe_layer(hidden_size=64, expert_size=32, heads=4, kv_heads=4, experts=16, per_token=3)

    def gradients(**changes):
        return block_memory(layer, context(hidden_size=64, tokens=12, **changes)).gradients

    routed, rest = 36 * (32 + 32 + 64), 12 * (16 + 2 * 64)
    assert gradients() == 2 * (routed + rest + 12 * 4 * 64)
    assert gradients(expert_tp=2) == 2 * (36 * (16 + 16 + 64) + rest + 12 * 4 * 64)
    attention = 12 * (3 * 64 // 2 + 64)
    assert gradients(tp=2, is_sequence_parallel=True) == 2 * ((routed + rest) // 2 + attention)
    memory = block_memory(layer, context(hidden_size=64, tokens=12))
    assert memory.whole - memory.dense == 2 * 36 * (64 + 32 + 2 * 32 + 32 + 64)


def test_key_heads_beyond_their_number_are_whole():
    """8 heads of keys and values on 16 ranks: one of 128 numbers each."""
    divided = (4096 + 14336 + 14336) // 16 + 2 * 128
    assert llama(tp=16).gradients == 2 * 512 * (divided + 4 * 4096)

"""FLOP conventions against published figures."""

import pytest

from shardwise.course.formulas import flop_counts as flop
from shardwise.formulas.flop_counts import six_n_flop_per_token

LLAMA_3_8B = {
    "num_params": 8_030_261_248,
    "num_input_embedding_params": 128_256 * 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "qk_plus_v_dim": 256,
    "seq_len": 8192,
}


def test_llama_3_8b_under_three_conventions():
    """57.9 / 51.5 / 48.2 GFLOP per token at 8,192 tokens."""
    assert flop.torchtitan_flop_per_token(**LLAMA_3_8B) / 1e9 == pytest.approx(57.9, abs=0.05)
    assert flop.causal_flop_per_token(**LLAMA_3_8B) / 1e9 == pytest.approx(51.5, abs=0.05)
    assert six_n_flop_per_token(num_params=8_030_261_248) / 1e9 == pytest.approx(48.2, abs=0.05)


@pytest.mark.parametrize(("tokens_per_s", "published_percent"), [(5762, 33.7), (6667, 39.0)])
def test_torchtitans_published_mfu(tokens_per_s, published_percent):
    """benchmarks/llama3_h100_202412_torchtitan.md: 33 % to 39 % on H100 (989 TFLOP/s)."""
    mfu = flop.model_flop_utilisation(
        flop_per_step=flop.torchtitan_flop_per_token(**LLAMA_3_8B) * tokens_per_s,
        step_s=1.0,
        num_gpus=1,
        peak_flop_per_s=989e12,
    )
    assert mfu * 100 == pytest.approx(published_percent, abs=0.06)


def test_one_rate_is_three_utilisations():
    """6,667 tokens/s per GPU is 39.0, 34.7 or 32.5 % of 989 TFLOP/s."""
    per_token = (
        flop.torchtitan_flop_per_token(**LLAMA_3_8B),
        flop.causal_flop_per_token(**LLAMA_3_8B),
        six_n_flop_per_token(num_params=8_030_261_248),
    )
    assert [one * 6667 / 989e12 * 100 for one in per_token] == pytest.approx([39.0, 34.7, 32.5], abs=0.06)


def test_llm_foundry_70b_reproduces_its_published_rate():
    """README, MPT-70b on 512 H100, batch 4,096, 2,048 tokens: 515,636 tokens/s is 408 TFLOP/s, MFU 41.25."""
    per_token = flop.llm_foundry_flop_per_token(
        num_params=64_862_437_376, num_hidden_layers=80, hidden_size=8192, seq_len=2048
    )
    step = {"flop_per_step": per_token * 515_636, "step_s": 1.0, "num_gpus": 512, "peak_flop_per_s": 989e12}
    assert per_token * 515_636 / 512 / 1e12 == pytest.approx(408, abs=0.6)
    assert flop.model_flop_utilisation(**step) * 100 == pytest.approx(41.25, abs=0.05)


def test_gpt_3_takes_the_published_34_days():
    """arXiv:2104.04473 section 5.1: 175B, 300B tokens, 1,024 A100 at 140 TFLOP/s: about 34 days."""
    per_step = flop.megatron_2021_flop_per_step(
        global_batch_size=1536, seq_len=2048, num_hidden_layers=96, hidden_size=12288, vocab_size=51200
    )
    steps = 300e9 / (1536 * 2048)
    assert steps * per_step / (1024 * 140e12) / 86400 == pytest.approx(34, abs=1)


def test_halving_attention_is_the_only_difference():
    full, half = flop.torchtitan_flop_per_token(**LLAMA_3_8B), flop.causal_flop_per_token(**LLAMA_3_8B)
    no_attention = flop.causal_flop_per_token(**{**LLAMA_3_8B, "seq_len": 0})
    assert full - half == half - no_attention


def test_palm_counts_the_table_that_torchtitan_leaves_out():
    palm = flop.palm_flop_per_token(
        num_params=8_030_261_248, num_hidden_layers=32, num_attention_heads=32, head_dim=128, seq_len=8192
    )
    assert palm - flop.torchtitan_flop_per_token(**LLAMA_3_8B) == 6 * 128_256 * 4096


def test_recompute_costs_four_thirds():
    assert flop.recompute_flop_ratio(recomputed_fraction=0.0) == 1
    assert flop.recompute_flop_ratio() == pytest.approx(4 / 3)

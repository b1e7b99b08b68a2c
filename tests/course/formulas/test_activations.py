"""Published and measured activation coefficients."""

import pytest

from shardwise.course.formulas import activations
from shardwise.units import GIB

GPT3 = {"seq_len": 2048, "micro_batch_size": 1, "hidden_size": 12288}
MT_NLG = {"seq_len": 2048, "micro_batch_size": 1, "hidden_size": 20480}


@pytest.mark.parametrize(("shape", "heads", "published"), [(GPT3, 96, 80), (MT_NLG, 128, 64)])
def test_scores_weigh_as_korthikanti_section_5_says(shape, heads, published):
    """arXiv:2205.05198 section 5: 5as/h is 80 for GPT-3 and 64 for MT-NLG."""
    whole = activations.block_activation_bytes(**shape, num_attention_heads=heads)
    sbh = shape["seq_len"] * shape["hidden_size"]
    assert whole / sbh == 34 + published


@pytest.mark.parametrize(("hidden_size", "heads", "published_percent"), [(12288, 96, 70), (20480, 128, 65)])
def test_selective_recompute_saves_what_the_paper_says(hidden_size, heads, published_percent):
    share = activations.score_share(seq_len=2048, hidden_size=hidden_size, num_attention_heads=heads)
    assert round(share * 100) == published_percent


def test_selective_recompute_is_what_remains_without_scores():
    whole = activations.block_activation_bytes(**GPT3, num_attention_heads=96)
    share = activations.score_share(seq_len=2048, hidden_size=12288, num_attention_heads=96)
    kept = activations.selective_recompute_activation_bytes(**GPT3)
    assert kept == pytest.approx(whole * (1 - share))


def test_parallel_equations_reduce_to_the_serial_one():
    shape = {"seq_len": 11, "micro_batch_size": 3, "hidden_size": 14, "num_attention_heads": 7}
    serial = activations.block_activation_bytes(**shape)
    assert activations.tensor_parallel_activation_bytes(**shape, tp=1) == pytest.approx(serial)
    assert activations.sequence_parallel_activation_bytes(**shape, tp=1) == serial


def test_sequence_parallelism_divides_what_tensor_parallelism_leaves_whole():
    shape = {**GPT3, "num_attention_heads": 96}
    plain = activations.tensor_parallel_activation_bytes(**shape, tp=8)
    sequence = activations.sequence_parallel_activation_bytes(**shape, tp=8)
    sbh = 2048 * 12288
    assert plain - sequence == pytest.approx(sbh * 10 * (1 - 1 / 8))


def per_hidden(**changes: object) -> float:
    shape = {
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "intermediate_size": 14336,
        "saved_wide_tensors": 4,
        "has_fused_norm": True,
    } | changes
    tiny_head_statistics = 4 * shape["num_attention_heads"]
    return (activations.flash_block_bytes_per_token(**shape) - tiny_head_statistics) / shape["hidden_size"]


def test_general_form_gives_the_derived_llama_coefficients():
    """41 with a fused norm, 53 with a decomposed one (measured 53.2), 34 with a fused SwiGLU as well."""
    assert per_hidden() == 41
    assert per_hidden(has_fused_norm=False) == 53
    assert per_hidden(saved_wide_tensors=3) == 34


def test_general_form_gives_the_measured_llama_2_block():
    """Llama-2-7B block with decomposed RMSNorm: 49.7 bytes per hidden element measured with saved-tensor hooks."""
    computed = per_hidden(num_key_value_heads=32, intermediate_size=11008, has_fused_norm=False)
    assert computed == pytest.approx(49.7, abs=0.25)


def test_general_form_gives_the_measured_gpt2_block():
    """GPT-2 style block, flash, no dropout: 32.1 measured."""
    computed = per_hidden(num_key_value_heads=32, intermediate_size=4 * 4096, saved_wide_tensors=2)
    assert computed == pytest.approx(32.1, abs=0.15)


def test_logits_peak_spans_the_measured_range():
    """Llama-3-8B, 16,384 tokens: 19.6 to 23.5 GiB measured."""
    low = activations.logits_peak_bytes(num_tokens=16_384, vocab_size=128_256, has_gradient_copies=False) / GIB
    high = activations.logits_peak_bytes(num_tokens=16_384, vocab_size=128_256) / GIB
    assert low == pytest.approx(19.6, abs=0.05)
    assert high > 23.5


def test_the_first_pipeline_stage_holds_as_much_as_one_device():
    one_layer = activations.full_recompute_activation_bytes(seq_len=7, micro_batch_size=3, hidden_size=11)
    assert activations.first_stage_activation_bytes(layer_activation_bytes=one_layer, num_hidden_layers=5) == 2310

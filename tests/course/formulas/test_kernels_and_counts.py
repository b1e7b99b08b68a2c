"""The roofline, and parameter counts against published figures."""

import pytest

from shardwise.course.formulas import kernel_time
from shardwise.course.formulas import parameter_counts as params


def test_roofline_takes_the_longer_side():
    machine = {"flop_per_s": 100.0, "bandwidth_bytes_per_s": 10.0}
    assert kernel_time.roofline_s(flop=500, num_bytes=7, **machine) == 5
    assert kernel_time.roofline_s(flop=500, num_bytes=70, **machine) == 7


def test_gpt2_counts():
    small = params.gpt2_params(vocab_size=50257, max_position_embeddings=1024, hidden_size=768, num_hidden_layers=12)
    xl = params.gpt2_params(vocab_size=50257, max_position_embeddings=1024, hidden_size=1600, num_hidden_layers=48)
    assert small == 124_439_808
    assert xl == 1_557_611_200


LLAMA_2_7B = {"hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 32, "intermediate_size": 11008}
LLAMA_3_8B = {"hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336}
LLAMA_3_70B = {"hidden_size": 8192, "num_attention_heads": 64, "num_key_value_heads": 8, "intermediate_size": 28672}
LLAMA_3_405B = {"hidden_size": 16384, "num_attention_heads": 128, "num_key_value_heads": 8, "intermediate_size": 53248}


@pytest.mark.parametrize(
    ("shape", "vocab_size", "layers", "published"),
    [
        (LLAMA_2_7B, 32000, 32, 6_738_415_616),
        (LLAMA_3_8B, 128256, 32, 8_030_261_248),
        (LLAMA_3_70B, 128256, 80, 70_553_706_496),
        (LLAMA_3_405B, 128256, 126, 405_853_388_800),
    ],
)
def test_llama_counts(shape, vocab_size, layers, published):
    layer = params.llama_layer_params(**shape, head_dim=128)
    model = {"vocab_size": vocab_size, "hidden_size": shape["hidden_size"], "num_hidden_layers": layers}
    assert params.llama_params(**model, layer_params=layer) == published


def test_mixtral_count():
    """46,702,792,704 parameters."""
    attention = params.llama_layer_params(
        hidden_size=4096, num_attention_heads=32, num_key_value_heads=8, head_dim=128, intermediate_size=0
    )
    experts = params.expert_layer_params(hidden_size=4096, num_experts=8, moe_intermediate_size=14336)
    total = params.llama_params(
        vocab_size=32000, hidden_size=4096, num_hidden_layers=32, layer_params=attention + experts
    )
    assert total == 46_702_792_704


def test_deepseek_v3_count():
    """671,026,404,352 without router biases and multi-token prediction."""
    attention = params.mla_params(
        hidden_size=7168,
        num_attention_heads=128,
        q_lora_rank=1536,
        kv_lora_rank=512,
        qk_nope_head_dim=128,
        qk_rope_head_dim=64,
        v_head_dim=128,
    )
    norms = 2 * 7168
    dense = 3 * (attention + norms + 3 * 7168 * 18432)
    experts = params.expert_layer_params(
        hidden_size=7168, num_experts=256, moe_intermediate_size=2048, shared_intermediate_size=2048
    )
    assert dense + 58 * (attention + norms + experts) + 2 * 129280 * 7168 + 7168 == 671_026_404_352

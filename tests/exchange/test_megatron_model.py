"""Megatron-LM is told every part of a model that its defaults, those of a GPT of 2019, would build otherwise."""

import pytest

from shardwise.exchange.megatron_model import megatron_model_keys, unsaid_of_model
from shardwise.families import read_model
from shardwise.plan_file import read_plan

LLAMA = {
    **{"normalization": "RMSNorm", "norm_epsilon": 1e-5, "attention_dropout": 0.0, "hidden_dropout": 0.0},
    **{"disable_bias_linear": True, "add_qkv_bias": False, "position_embedding_type": "rope", "rotary_base": 500000},
    **{"swiglu": True, "squared_relu": False, "ffn_hidden_size": 14336, "vocab_size": 128256, "num_query_groups": 8},
    **{"qk_layernorm": False, "untie_embeddings_and_output_weights": True},
}
QWEN = {"add_qkv_bias": True, "disable_bias_linear": True, "norm_epsilon": 1e-6, "rotary_base": 1000000}
MIXTURE = {
    **{"qk_layernorm": True, "num_experts": 128, "moe_router_topk": 8, "moe_ffn_hidden_size": 768, "kv_channels": 128},
    **{"moe_grouped_gemm": True, "moe_router_load_balancing_type": "aux_loss", "moe_router_pre_softmax": False},
    **{"moe_layer_freq": None, "moe_shared_expert_intermediate_size": None, "moe_router_score_function": None},
}
DEEPSEEK = {
    **{"multi_latent_attention": True, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_head_dim": 128, "v_head_dim": 128},
    **{"qk_pos_emb_head_dim": 64, "ffn_hidden_size": 18432, "moe_ffn_hidden_size": 2048, "rotary_base": 10000},
    **{"moe_shared_expert_intermediate_size": 2048, "moe_router_score_function": "sigmoid", "moe_router_num_groups": 8},
    **{"moe_router_enable_expert_bias": True, "moe_router_group_topk": 4, "moe_router_topk_scaling_factor": 2.5},
    **{"moe_layer_freq": f"[{','.join('0' * 3 + '1' * 58)}]", "moe_router_load_balancing_type": "none"},
}
GPT_2 = {
    **{"normalization": "LayerNorm", "position_embedding_type": "learned_absolute", "disable_bias_linear": False},
    **{"attention_dropout": 0.1, "hidden_dropout": 0.1, "swiglu": False, "untie_embeddings_and_output_weights": False},
}


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("llama-3.1-8b", LLAMA),
        ("qwen2.5-7b", QWEN),
        ("qwen3-30b-a3b", MIXTURE),
        ("deepseek-v3", DEEPSEEK),
        ("gpt2-xl", GPT_2),
        ("deepseek-v2-lite", {"moe_router_pre_softmax": True, "moe_router_score_function": None}),
    ],
)
def test_the_model_is_told_in_full(name, said):
    keys = megatron_model_keys(read_model(name), seq_len=1024)
    assert {key: keys[key] for key in said} == said
    assert unsaid_of_model(read_model(name)) == ()


def test_a_config_of_transformers_5_says_its_positions_in_one_table():
    config = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    positions = {"rope_parameters": {"rope_type": "default", "rope_theta": 250000.0}}
    fields = {**config, "intermediate_size": 128, "vocab_size": 256, **positions}
    plan = read_plan({"model": fields, "cluster": "1xh100-sxm", "recipe": {"seq_len": 64}})
    assert megatron_model_keys(plan.model, seq_len=64)["rotary_base"] == 250000


@pytest.mark.parametrize("table", ["rope_parameters", "rope_scaling"])
def test_scaled_positions_are_told_or_named(table):
    fields = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    fields |= {"intermediate_size": 128, "vocab_size": 256}

    def model_with(kind):
        scaled = {**fields, table: {"rope_type": kind, "factor": 8.0, "rope_theta": 500000.0}}
        return read_plan({"model": scaled, "cluster": "1xh100-sxm", "recipe": {"seq_len": 64}}).model

    keys = megatron_model_keys(model_with("llama3"), seq_len=64)
    assert (keys["use_rope_scaling"], keys["rope_scaling_factor"], keys["rotary_base"]) == (True, 8.0, 500000)
    assert unsaid_of_model(model_with("llama3")) == ()
    assert unsaid_of_model(model_with("yarn")) == ("rotary positions scaled by yarn",)


def test_parts_without_an_option_are_named():
    assert unsaid_of_model(read_model("gemma-2-9b")) == (
        "sliding windows",
        "norms behind attention and feed-forward",
        "gates of gelu_pytorch_tanh",
    )

"""Every causal family of the installed transformers as a model of a few thousand parameters.

A family's config class says which fields it has; those that set sizes are made small by name (`SMALL`), and `ODD` says
what a family needs beside. The probes of attention, loading, export and initialisation go through this list.
"""

import dataclasses
import inspect
from typing import Any

from shardwise.families.table import FAMILIES

VOCAB_SIZE = 128
SMALL = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "n_embd": 32,
    "d_model": 32,
    "dim": 32,
    "embedding_size": 32,
    "emb_dim": 32,
    "intermediate_size": 48,
    "n_inner": 48,
    "ffn_dim": 48,
    "d_ff": 48,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "shared_expert_intermediate_size": 48,
    "moe_intermediate_size": 24,
    "expert_ffn_hidden_size": 24,
    "ffn_hidden_size": 48,
    "mlp_hidden_size": 48,
    "num_hidden_layers": 4,
    "n_layer": 4,
    "n_layers": 4,
    "num_layers": 4,
    "encoder_layers": 2,
    "decoder_layers": 4,
    "num_attention_heads": 4,
    "n_head": 4,
    "n_heads": 4,
    "num_heads": 4,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "n_positions": 64,
    "max_seq_len": 64,
    "n_ctx": 64,
    "max_sequence_length": 64,
    "sliding_window": 8,
    "attention_window_size": 8,
    "window_size": 8,
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "moe_num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_k": 2,
    "moe_topk": 2,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "kv_lora_rank": 16,
    "q_lora_rank": 24,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
MAMBA = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_n_groups": 1, "mamba_d_state": 8}
MIXED = {"layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"]}
ODD = {
    **{
        key: {"num_key_value_heads": 4}
        for key in (
            "axk1",
            "axk2",
            "deepseek_v2",
            "deepseek_v3",
            "deepseek_v32",
            "glm4_moe_lite",
            "glm_moe_dsa",
            "minicpm3",
            "sarvam_mla",
            "youtu",
        )
    },
    "bailing_hybrid": {"layer_group_size": 2, "num_key_value_heads": 4},
    "bamba": {**MAMBA, "attn_layer_indices": [1]},
    "granitemoehybrid": {**MAMBA, "layer_types": ["mamba", "attention", "mamba", "attention"]},
    "codegen": {"rotary_dim": 4},
    "gptj": {"rotary_dim": 4},
    "gpt_neo": {"attention_types": [[["global", "local"], 2]]},
    "cpmant": {
        "dim_head": 8,
        "position_bias_num_buckets": 8,
        "segment_types": 2,
        "prompt_types": 2,
        "prompt_length": 2,
    },
    "ctrl": {"dff": 48},
    "deepseek_v2": {"num_key_value_heads": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1},
    "deepseek_v32": {"num_key_value_heads": 4, "index_n_heads": 2, "index_head_dim": 16, "index_topk": 8},
    "glm_moe_dsa": {"num_key_value_heads": 4, "index_n_heads": 2, "index_head_dim": 16, "index_topk": 8},
    "dots1": {
        "num_key_value_heads": 4,
        "n_routed_experts": 4,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "n_group": 1,
        "topk_group": 1,
    },
    "dbrx": {
        "attn_config": {"kv_n_heads": 2, "rope_theta": 10000.0, "clip_qkv": 8.0},
        "ffn_config": {"ffn_hidden_size": 24, "moe_num_experts": 4, "moe_top_k": 2},
    },
    "gemma3n_text": {
        "num_kv_shared_layers": 1,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "sliding_attention"],
        "hidden_size_per_layer_input": 8,
        "vocab_size_per_layer_input": 128,
        "laurel_rank": 8,
        "activation_sparsity_pattern": [0.0] * 4,
        "intermediate_size": [48] * 4,
    },
    "gemma4_text": {"num_kv_shared_layers": 0, "hidden_size_per_layer_input": 0, "global_head_dim": 8, **MIXED},
    "gemma4_unified_text": {"num_kv_shared_layers": 0, "hidden_size_per_layer_input": 0, "global_head_dim": 8, **MIXED},
    "xmod": {"default_language": "en_XX"},
    "qwen4_exp_text": {
        "indexer_n_heads": 2,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 8,
        "indexer_budget": 8,
        "indexer_compress_ratio": 2,
        "layer_types": ["linear_attention", "indexed_attention", "linear_attention", "indexed_attention"],
        "hc_lowrank": 8,
        "output_gate_type": "sigmoid",
    },
    "hunyuan_v1_dense": {"head_dim": 8},
    "hunyuan_v1_moe": {"head_dim": 8},
    "ministral": {"head_dim": 8},
    "nemotron": {"head_dim": 8, "num_key_value_heads": 2},
    "jamba": {
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "expert_layer_period": 2,
        "mamba_d_state": 8,
        "mamba_dt_rank": 4,
    },
    "lfm2_moe": {"layer_types": ["conv", "full_attention", "conv", "full_attention"]},
    "mamba2": {"num_heads": 8, "head_dim": 8, "n_groups": 1, "state_size": 8},
    "nemotron_h": {
        "mamba_num_heads": 4,
        "mamba_head_dim": 8,
        "n_groups": 1,
        "ssm_state_size": 8,
        "layers_block_type": ["mamba", "attention", "mlp", "mamba"],
    },
    "kimi_linear": {
        "linear_attn_config": {
            "full_attn_layers": [2, 4],
            "kda_layers": [1, 3],
            "head_dim": 8,
            "num_heads": 4,
            "short_conv_kernel_size": 4,
        }
    },
    "zamba2": {
        "layers_block_type": ["mamba", "hybrid", "mamba", "hybrid"],
        "hybrid_layer_ids": [1, 3],
        "num_mem_blocks": 1,
        "n_mamba_heads": 4,
        "mamba_headdim": 16,
        "mamba_ngroups": 1,
        "mamba_d_state": 8,
        "adapter_rank": 8,
        "layer_types": ["mamba", "hybrid", "mamba", "hybrid"],
        "attention_hidden_size": 64,
        "attention_head_dim": 16,
    },
    "zamba": {
        "layers_block_type": ["mamba", "hybrid", "mamba", "hybrid"],
        "layer_types": ["mamba", "hybrid", "mamba", "hybrid"],
        "n_mamba_heads": 2,
        "mamba_d_state": 8,
        "mamba_dt_rank": 4,
        "attention_head_dim": 16,
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
    },
    "zaya": {"num_experts_per_tok": 1},
    "xlnet": {"d_inner": 48},
    "xlstm": {"num_heads": 2},
    "roc_bert": {
        "pronunciation_vocab_size": 16,
        "shape_vocab_size": 16,
        "pronunciation_embed_dim": 8,
        "shape_embed_dim": 8,
    },
    "deepseek_v4": {
        "o_groups": 2,
        "o_lora_rank": 8,
        "index_n_heads": 2,
        "index_head_dim": 8,
        "num_hash_layers": 1,
        "hc_mult": 2,
    },
    "longcat_flash": {"zero_expert_num": 2, "num_layers": 2, "num_key_value_heads": 4},
    "minimax_m3_vl_text": {"index_head_dim": 8, "dense_intermediate_size": 48},
}


def families() -> tuple[str, ...]:
    """Every model_type from which ``AutoModelForCausalLM`` builds a model."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return tuple(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def readable_families() -> tuple[str, ...]:
    """Those of which a plan can be made; every other one is refused as unknown before anything starts."""
    return tuple(name for name in families() if name in FAMILIES)


def tiny_fields(model_type: str) -> dict[str, Any]:
    """The fields of a small config.json of a family, its model_type among them."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    return {"model_type": model_type, **_small(CONFIG_MAPPING[model_type]()), **ODD.get(model_type, {})}


def _small(default) -> dict[str, Any]:
    fields = {name: value for name, value in SMALL.items() if name in _names(type(default)) and _is_size(default, name)}
    for name in getattr(default, "sub_configs", None) or {}:
        part = getattr(default, name, None)
        if part is not None and not isinstance(part, dict):
            fields[name] = {"model_type": part.model_type, **_small(part)}
    return fields


def _is_size(default, name: str) -> bool:
    # Not as an attribute: a config whose layers differ refuses to say what is not the same in all of them.
    return type(vars(default).get(name)) is int


def _names(config_class) -> set[str]:
    names = set(inspect.signature(config_class.__init__).parameters)
    return names | (
        {field.name for field in dataclasses.fields(config_class)} if dataclasses.is_dataclass(config_class) else set()
    )

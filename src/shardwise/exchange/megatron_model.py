"""The model of a plan as Megatron-LM's arguments, whose defaults are a GPT of 2019: norms, positions, biases, experts.

Source: NVIDIA/Megatron-LM@d98e8a64 ``megatron/training/arguments.py``, ``core/transformer/transformer_config.py``.
"""

from collections.abc import Mapping

from shardwise.exchange.facts import FactValue
from shardwise.families.reading import written_config
from shardwise.model import AttentionSpec, DenseSpec, LayerSpec, ModelSpec, MoeSpec

__all__ = ["megatron_model_keys", "unsaid_of_model"]

Keys = dict[str, FactValue]
EPSILONS = ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_epsilon")
"""A norm's epsilon, as configs name it."""
SIGMOID_ROUTERS = ("deepseek_v3", "deepseek_v32", "dots1", "glm4_moe", "glm4_moe_lite", "glm_moe_dsa", "kimi_k2")
"""Families whose scores are sigmoids and whose routers a bias balances, though their configs need not say it
(transformers 5.17, ``modeling_*.py`` with ``e_score_correction_bias``)."""
LLAMA_3 = "llama3"
"""The one scaling of rotary positions that ``--use-rope-scaling`` means."""
QKV_PROJECTIONS = ("q_proj", "k_proj", "v_proj", "c_attn", "query_key_value", "qkv_proj", "Wqkv")


def megatron_model_keys(model: ModelSpec, *, seq_len: int) -> Keys:
    """Every option that makes Megatron-LM build this model; the tokenizer is a placeholder."""
    layer, config = model.layers[-1], written_config(model)
    keys: Keys = {
        "num_layers": model.num_hidden_layers,
        "hidden_size": model.hidden_size,
        "max_position_embeddings": max(model.max_position_embeddings, seq_len),
        "untie_embeddings_and_output_weights": not model.tie_word_embeddings,
        "vocab_size": model.vocab_size,
        "tokenizer_type": "HuggingFaceTokenizer",
        "tokenizer_model": "TOKENIZER",
        "normalization": "RMSNorm" if layer.norm == "rmsnorm" else "LayerNorm",
        "norm_epsilon": _number(config, *EPSILONS),
        "attention_dropout": model.attention_dropout_fraction,
        "hidden_dropout": model.hidden_dropout_fraction,
        **_biases(layer),
    }
    if isinstance(layer.mixer, AttentionSpec):
        keys |= _attention(model, layer.mixer, config)
    if layer.feed_forward is not None:
        keys["swiglu"] = layer.feed_forward.is_gated
        keys["squared_relu"] = layer.feed_forward.hidden_act == "relu2"
    if isinstance(layer.feed_forward, DenseSpec):
        keys["ffn_hidden_size"] = layer.feed_forward.intermediate_size
    elif isinstance(layer.feed_forward, MoeSpec):
        keys |= _experts(model, layer.feed_forward, config)
    return keys


def unsaid_of_model(model: ModelSpec) -> tuple[str, ...]:
    """Parts of a model that no option written here says, in words."""
    found: list[str] = []
    scaling = _scaling(written_config(model))
    if scaling not in ("default", LLAMA_3):
        found.append(f"rotary positions scaled by {scaling}")
    for layer, _ in model.layer_runs:
        mixer, block = layer.mixer, layer.feed_forward
        if not isinstance(mixer, AttentionSpec):
            found.append("layers without attention")
            continue
        if mixer.sliding_window is not None:
            found.append("sliding windows")
        if not mixer.has_rotary and len(model.embedding_weights) == 1:
            found.append("positions that are neither rotary nor learned")
        if layer.is_parallel:
            found.append("attention beside the feed-forward")
        if layer.num_norms > 2:
            found.append("norms behind attention and feed-forward")
        if block is not None and block.is_gated and block.hidden_act not in ("silu", "swish"):
            found.append(f"gates of {block.hidden_act}")
    return tuple(dict.fromkeys(found))


def _rotation(config: Mapping[str, object]) -> Mapping[str, object]:
    """The table of rotary positions: ``rope_parameters`` since transformers 5, ``rope_scaling`` before."""
    found = config.get("rope_parameters") or config.get("rope_scaling")
    return found if isinstance(found, Mapping) else {}


def _scaling(config: Mapping[str, object]) -> str:
    rotation = _rotation(config)
    return str(rotation.get("rope_type") or rotation.get("type") or "default")


def _number(config: Mapping[str, object], *names: str) -> float | None:
    found = next((config[name] for name in names if config.get(name) is not None), None)
    return found if isinstance(found, int | float) else None


def _biases(layer: LayerSpec) -> Keys:
    """Biases beside all matrices by default; beside none, or those of queries, keys and values alone."""
    biases = [weight.name for weight in layer.weights if weight.name.endswith(".bias") and "norm" not in weight.name]
    biases = [name for name in biases if not name.split(".")[-2].startswith("ln")]
    of_qkv = [name for name in biases if name.split(".")[-2] in QKV_PROJECTIONS]
    has_others = len(of_qkv) < len(biases)
    return {"disable_bias_linear": not has_others, "add_qkv_bias": bool(of_qkv) and not has_others}


def _attention(model: ModelSpec, mixer: AttentionSpec, config: Mapping[str, object]) -> Keys:
    keys: Keys = {"num_attention_heads": mixer.num_attention_heads, "qk_layernorm": mixer.has_qk_norm}
    if mixer.has_rotary:
        positions = {**config, **_rotation(config)}
        keys["position_embedding_type"] = "rope"
        keys["rotary_base"] = round(_number(positions, "rope_theta", "rotary_emb_base") or 10_000)
        keys["rotary_percent"] = _number(positions, "partial_rotary_factor", "rotary_pct")
        if _scaling(config) == LLAMA_3:
            keys["use_rope_scaling"] = True
            keys["rope_scaling_factor"] = _number(_rotation(config), "factor")
    else:
        keys["position_embedding_type"] = "learned_absolute"
    if mixer.kv_lora_rank is not None:
        rotary = mixer.qk_rope_head_dim or 0
        return {
            **keys,
            "multi_latent_attention": True,
            "qk_layernorm": True,  # norms of the compressed queries and keys
            "q_lora_rank": mixer.q_lora_rank,
            "kv_lora_rank": mixer.kv_lora_rank,
            "qk_head_dim": mixer.head_dim - rotary,
            "qk_pos_emb_head_dim": rotary,
            "v_head_dim": mixer.v_head_dim,
        }
    if mixer.head_dim * mixer.num_attention_heads != model.hidden_size:
        keys["kv_channels"] = mixer.head_dim
    if mixer.num_key_value_heads != mixer.num_attention_heads:
        keys["group_query_attention"] = True
        keys["num_query_groups"] = mixer.num_key_value_heads
    return keys


def _experts(model: ModelSpec, block: MoeSpec, config: Mapping[str, object]) -> Keys:
    dense = [one.feed_forward.intermediate_size for one in model.layers if isinstance(one.feed_forward, DenseSpec)]
    is_sigmoid = config.get("scoring_func") == "sigmoid" or model.model_type in SIGMOID_ROUTERS
    groups = _number(config, "n_group") or 1
    is_normed = config.get("norm_topk_prob") is not False
    has_experts = [int(isinstance(one.feed_forward, MoeSpec)) for one in model.layers]
    return {
        "num_experts": block.num_experts,
        "moe_router_topk": block.num_experts_per_tok,
        "ffn_hidden_size": dense[0] if dense else block.moe_intermediate_size,
        "moe_ffn_hidden_size": block.moe_intermediate_size,
        "moe_shared_expert_intermediate_size": block.shared_intermediate_size or None,
        "moe_layer_freq": f"[{','.join(map(str, has_experts))}]" if dense else None,
        "moe_grouped_gemm": True,
        "moe_router_score_function": "sigmoid" if is_sigmoid else None,
        "moe_router_enable_expert_bias": is_sigmoid,
        "moe_router_pre_softmax": not is_sigmoid and not is_normed,
        "moe_router_num_groups": groups if groups > 1 else None,
        "moe_router_group_topk": _number(config, "topk_group") if groups > 1 else None,
        "moe_router_topk_scaling_factor": _number(config, "routed_scaling_factor") if is_sigmoid else None,
        "moe_router_load_balancing_type": "none" if is_sigmoid else "aux_loss",
        "moe_aux_loss_coeff": None if is_sigmoid else (_number(config, "router_aux_loss_coef") or 0.001),
    }

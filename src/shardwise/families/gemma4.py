"""Gemma 4: wider heads in global layers, keys that are values, layers that reuse keys and values, per-layer tokens."""

from typing import NamedTuple

from shardwise.families.assembly import attention_of, language_head, language_model, num_layers, repeat_layers
from shardwise.families.blocks import (
    Weights,
    expert_weights,
    mlp_weights,
    norm,
    norms,
    projection,
    router_weights,
    token_table,
    vector,
)
from shardwise.families.config import ModelConfig
from shardwise.families.llama_styles import SANDWICH_NORMS
from shardwise.families.windows import windows_of
from shardwise.model import AttentionSpec, DenseSpec, LayerSpec, ModelSpec, MoeSpec, Weight

LOCAL_LAYERS_PER_GLOBAL = 6
_EXPERT_NORMS = ("post_feedforward_layernorm_1", "post_feedforward_layernorm_2", "pre_feedforward_layernorm_2")


class Gemma4Kind(NamedTuple):
    """The fields in which blocks of Gemma 4 differ."""

    window: int | None
    reuses_keys: bool
    """The block attends to keys and values of an earlier one and has no weights for them."""


def gemma4_text(config: ModelConfig) -> ModelSpec:
    """The language model of Gemma 4."""
    hidden_size, count = config.count("hidden_size"), num_layers(config)
    windows = windows_of(config, "periodic", period=LOCAL_LAYERS_PER_GLOBAL)
    first_reuse = count - config.count_or_zero("num_kv_shared_layers")
    kinds = tuple(
        Gemma4Kind(None if index == count - 1 else window, index >= first_reuse) for index, window in enumerate(windows)
    )
    return language_model(
        config,
        layers=repeat_layers(kinds, lambda kind: _layer(config, kind)),
        embeddings=token_table("model.embed_tokens", config.count("vocab_size"), hidden_size)
        + per_layer_tables(config),
        final=norm("model.norm", hidden_size),
        head=language_head(config, "lm_head", hidden_size),
    )


def per_layer_tables(config: ModelConfig) -> Weights:
    """A second, narrow token vector for every layer (the E2B and E4B models)."""
    width = config.count_or_zero("hidden_size_per_layer_input")
    if not width:
        return ()
    joint = num_layers(config) * width
    table = Weight(
        name="model.embed_tokens_per_layer.weight",
        shape=(config.count("vocab_size_per_layer_input"), joint),
        split="vocab",
        role="other",
    )
    into = projection("model.per_layer_model_projection", (joint, config.count("hidden_size")), "replicated")
    return (table, *into, *norm("model.per_layer_projection_norm", width))


def _layer(config: ModelConfig, kind: Gemma4Kind) -> LayerSpec:
    hidden_size = config.count("hidden_size")
    names: tuple[str, ...] = SANDWICH_NORMS
    attention = _attention(config, is_global=kind.window is None, window=kind.window)
    weights = shared_key_attention_weights(config, attention, kind)
    width = config.count("intermediate_size")
    if kind.reuses_keys and config.flag("use_double_wide_mlp"):
        width *= 2
    weights += mlp_weights("mlp", hidden_size, width)
    act = config.text("hidden_act")
    second: DenseSpec | MoeSpec = DenseSpec(intermediate_size=width, hidden_act=act, is_gated=True)
    if config.flag("enable_moe_block"):
        names += _EXPERT_NORMS
        weights += _expert_weights(config)
        second = MoeSpec(
            num_experts=config.count("num_experts"),
            num_experts_per_tok=config.count("num_experts_per_tok"),
            moe_intermediate_size=config.count("moe_intermediate_size"),
            shared_intermediate_size=width,
            hidden_act=act,
            is_gated=True,
        )
    per_layer = config.count_or_zero("hidden_size_per_layer_input")
    if per_layer:
        names += ("post_per_layer_input_norm",)
        weights += projection("per_layer_input_gate", (per_layer, hidden_size), "replicated")
        weights += projection("per_layer_projection", (hidden_size, per_layer), "replicated")
    return LayerSpec(
        mixer=attention,
        feed_forward=second,
        norm="rmsnorm",
        num_norms=len(names),
        normed="both",
        weights=weights + norms(names, hidden_size),
    )


def _attention(config: ModelConfig, *, is_global: bool, window: int | None) -> AttentionSpec:
    """Global layers have heads of their own width, and their own key-value heads where keys are values."""
    if is_global:
        kv_heads = config.value("num_global_key_value_heads") if config.flag("attention_k_eq_v") else None
        config = config.with_values(
            head_dim=config.count("global_head_dim"),
            num_key_value_heads=kv_heads if kv_heads is not None else config.value("num_key_value_heads"),
        )
    return attention_of(config, window=window, has_qk_norm=True)


def shared_key_attention_weights(config: ModelConfig, attention: AttentionSpec, kind: Gemma4Kind) -> Weights:
    """Attention weights of a block, which has none for keys and values where it reuses those of an earlier block."""
    hidden_size, head_dim, bias = config.count("hidden_size"), attention.head_dim, config.flag("attention_bias")
    kv_heads = attention.num_key_value_heads
    query_size, kv_size = attention.num_attention_heads * head_dim, kv_heads * head_dim
    weights = projection("self_attn.q_proj", (query_size, hidden_size), "column", bias=bias)
    weights += projection("self_attn.o_proj", (hidden_size, query_size), "row", bias=bias)
    weights += norm("self_attn.q_norm", head_dim)
    if kind.reuses_keys:
        return weights
    has_values = kind.window is not None or not config.flag("attention_k_eq_v")
    for name in ("k_proj", "v_proj") if has_values else ("k_proj",):
        weights += projection(f"self_attn.{name}", (kv_size, hidden_size), "column", bias=bias, split_limit=kv_heads)
    return weights + norm("self_attn.k_norm", head_dim)


def _expert_weights(config: ModelConfig) -> Weights:
    """Routed experts beside the dense part, with a scaled router."""
    hidden_size, num_experts = config.count("hidden_size"), config.count("num_experts")
    router = router_weights("router.proj", num_experts, hidden_size)
    router += vector("router.scale", hidden_size) + vector("router.per_expert_scale", num_experts)
    return router + expert_weights("experts", num_experts, hidden_size, config.count("moe_intermediate_size"))

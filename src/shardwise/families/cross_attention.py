"""Llama 3.2 Vision's language model: Llama with blocks that attend to the image instead of the text."""

from dataclasses import replace

from shardwise.families.assembly import attention_of, language_head, language_model, num_layers, repeat_layers
from shardwise.families.blocks import (
    attention_weights,
    mlp_weights,
    norm,
    norms,
    qk_norm_weights,
    token_table,
    vector,
)
from shardwise.families.config import ModelConfig
from shardwise.families.decoder import LLAMA, LayerKind, decoder_layer
from shardwise.model import DenseSpec, LayerSpec, ModelSpec

IMAGE_TOKEN_ROWS = 8
"""Rows the token table has beyond the vocabulary, for image tokens."""
_STYLE = replace(LLAMA, qkv_bias=False, output_bias=False, mlp_bias=False)


def mllama_text(config: ModelConfig) -> ModelSpec:
    """The language model of Llama 3.2 Vision."""
    hidden_size, vocab_size = config.count("hidden_size"), config.count("vocab_size")
    cross = frozenset(config.counts("cross_attention_layers") or ())
    kinds = tuple(index in cross for index in range(num_layers(config)))
    return language_model(
        config,
        layers=repeat_layers(kinds, lambda is_cross: _layer(config, is_cross=is_cross)),
        embeddings=token_table("model.embed_tokens", vocab_size + IMAGE_TOKEN_ROWS, hidden_size),
        final=norm("model.norm", hidden_size),
        head=language_head(config, "lm_head", hidden_size),
    )


def _layer(config: ModelConfig, *, is_cross: bool) -> LayerSpec:
    if not is_cross:
        return decoder_layer(config, _STYLE, LayerKind(window=None, has_rotary=True, is_sparse=False))
    hidden_size, width = config.count("hidden_size"), config.count("intermediate_size")
    attention = attention_of(config, has_rotary=False, has_qk_norm=True, is_causal=False)
    return LayerSpec(
        mixer=None,
        cross_attention=attention,
        feed_forward=DenseSpec(intermediate_size=width, hidden_act=config.text("hidden_act"), is_gated=True),
        norm="rmsnorm",
        num_norms=2,
        weights=attention_weights("cross_attn", attention, hidden_size)
        + qk_norm_weights("cross_attn", attention, "head")
        + mlp_weights("mlp", hidden_size, width)
        + norms(_STYLE.norms, hidden_size)
        + vector("cross_attn_attn_gate", 1)
        + vector("cross_attn_mlp_gate", 1),
    )

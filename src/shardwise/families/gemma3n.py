"""Gemma 3n: four alternating copies of the hidden state, low-rank residuals, per-layer tokens, reused keys and values.

Source: transformers 5.24.0, ``models/gemma3n/modeling_gemma3n.py``, read 2026-11-30.
"""

from dataclasses import replace

from shardwise.families.assembly import attention_of, language_head, language_model, num_layers, repeat_layers
from shardwise.families.blocks import Weights, mlp_weights, norm, norms, projection, token_table, vector
from shardwise.families.config import ModelConfig
from shardwise.families.gemma4 import Gemma4Kind, per_layer_tables, shared_key_attention_weights
from shardwise.families.llama_styles import SANDWICH_NORMS
from shardwise.families.windows import windows_of
from shardwise.model import DenseSpec, LayerSpec, ModelSpec

LOCAL_LAYERS_PER_GLOBAL = 5


def gemma3n_text(config: ModelConfig) -> ModelSpec:
    """The language model of Gemma 3n; its feed-forward width may differ from block to block."""
    hidden_size, count = config.count("hidden_size"), num_layers(config)
    windows = windows_of(config, "periodic", period=LOCAL_LAYERS_PER_GLOBAL)
    first_reuse = count - config.count_or_zero("num_kv_shared_layers")
    widths = _widths(config, count)
    kinds = [(Gemma4Kind(window, index >= first_reuse), widths[index]) for index, window in enumerate(windows)]
    model = language_model(
        config.with_values(intermediate_size=None),
        layers=repeat_layers(kinds, lambda kind: _layer(config, *kind)),
        embeddings=token_table("model.embed_tokens", config.count("vocab_size"), hidden_size)
        + per_layer_tables(config)
        + _copies(config),
        final=norm("model.norm", hidden_size),
        head=language_head(config, "lm_head", hidden_size),
    )
    sentence = "the copies of the hidden state of AltUp are counted among weights, not among activations"
    return replace(model, assumptions=(*model.assumptions, sentence))


def _widths(config: ModelConfig, count: int) -> tuple[int, ...]:
    if not isinstance(config.value("intermediate_size"), list | tuple):
        return (config.count("intermediate_size"),) * count
    listed = config.counts("intermediate_size") or ()
    if len(listed) != count or min(listed) < 1:
        config.refuse_range("intermediate_size", len(listed), f"one positive width for each of the {count} layers")
    return listed


def _copies(config: ModelConfig) -> Weights:
    """Matrices that make the other copies of the hidden state of the first, and back."""
    hidden_size, others = config.count("hidden_size"), config.count("altup_num_inputs") - 1
    return tuple(
        weight
        for name in ("altup_projections", "altup_unembed_projections")
        for index in range(others)
        for weight in projection(f"model.{name}.{index}", (hidden_size, hidden_size), "replicated")
    )


def _layer(config: ModelConfig, kind: Gemma4Kind, width: int) -> LayerSpec:
    hidden_size, copies = config.count("hidden_size"), config.count("altup_num_inputs")
    rank, per_layer = config.count("laurel_rank"), config.count("hidden_size_per_layer_input")
    attention = attention_of(config, window=kind.window, has_qk_norm=True)
    names = (*SANDWICH_NORMS, "post_per_layer_input_norm", "altup.router_norm", "laurel.post_laurel_norm")
    weights = (
        shared_key_attention_weights(config, attention, kind)
        + mlp_weights("mlp", hidden_size, width)
        + vector("altup.correct_output_scale", hidden_size)
        + projection("altup.correction_coefs", (copies, copies), "replicated")
        + projection("altup.prediction_coefs", (copies * copies, copies), "replicated")
        + projection("altup.modality_router", (copies, hidden_size), "replicated")
        + projection("laurel.linear_left", (rank, hidden_size), "replicated")
        + projection("laurel.linear_right", (hidden_size, rank), "replicated")
        + projection("per_layer_input_gate", (per_layer, hidden_size), "replicated")
        + projection("per_layer_projection", (hidden_size, per_layer), "replicated")
    )
    return LayerSpec(
        mixer=attention,
        feed_forward=DenseSpec(intermediate_size=width, hidden_act=config.text("hidden_act"), is_gated=True),
        norm="rmsnorm",
        num_norms=len(names),
        normed="both",
        weights=weights + norms(names, hidden_size),
    )

"""LFM2: short gated convolutions, with grouped-query attention in some blocks.

Source: transformers 5.24.0, ``models/lfm2/modeling_lfm2.py`` (``Lfm2ShortConv``, ``Lfm2MLP``), read 2026-11-30.
"""

from collections.abc import Mapping
from dataclasses import replace

from shardwise.families.assembly import num_layers, per_layer
from shardwise.families.blocks import AttentionNames, MlpNames, convolution, projection
from shardwise.families.config import ModelConfig
from shardwise.families.decoder import LLAMA
from shardwise.families.hybrid import Hybrid, HybridStyle, MixerWord
from shardwise.families.state_space import Mixer
from shardwise.model import MambaSpec, ModelSpec

_MIXERS: Mapping[str, MixerWord] = {"full_attention": "attention", "conv": "recurrent"}
_STYLE = replace(
    LLAMA,
    final_norm="model.embedding_norm",
    norms=("operator_norm", "ffn_norm"),
    attention=AttentionNames(output="out_proj", query_norm="q_layernorm", key_norm="k_layernorm"),
    qkv_bias=False,
    output_bias=False,
    qk_norm="head",
    mlp_prefix="feed_forward",
    mlp=MlpNames(gate="w1", up="w3", down="w2"),
    mlp_bias=False,
)


def lfm2(config: ModelConfig) -> ModelSpec:
    """The model the config describes; older files say ``block_ff_dim`` and ``tie_embedding``."""
    if config.value("block_ff_dim") is not None:
        config = config.with_values(intermediate_size=config.count("block_ff_dim"))
    if config.value("tie_embedding") is not None:
        config = config.with_values(tie_word_embeddings=config.flag("tie_embedding"))
    config = config.with_values(intermediate_size=_width(config))
    return Hybrid(HybridStyle(decoder=_STYLE, mixers=_mixers, recurrent=_short_convolution))(config)


def _width(config: ModelConfig) -> int:
    """Two thirds of the width that the config gives, times a factor, rounded up to a multiple."""
    width = config.count("intermediate_size")
    if not config.flag("block_auto_adjust_ff_dim"):
        return width
    width = int(2 * width / 3)
    if config.value("block_ffn_dim_multiplier") is None:
        return width
    multiple = config.count("block_multiple_of")
    return multiple * -(-int(config.number("block_ffn_dim_multiplier", otherwise=1.0) * width) // multiple)


def _mixers(config: ModelConfig) -> tuple[MixerWord, ...]:
    words = config.words("layer_types")
    if words is not None:
        listed = per_layer(config, "layer_types", words)
        known = " or ".join(_MIXERS)
        return tuple(_MIXERS.get(word) or config.refuse_type("layer_types", word, known) for word in listed)
    indices = config.counts("full_attn_idxs")
    count = range(num_layers(config))
    return tuple("attention" if indices is None or index in indices else "recurrent" for index in count)


def _short_convolution(config: ModelConfig) -> Mixer:
    """Two gates around a depthwise convolution: described as a state space mixer with a state of one per channel."""
    hidden_size, kernel, bias = config.count("hidden_size"), config.count("conv_L_cache"), config.flag("conv_bias")
    weights = (
        projection("conv.in_proj", (3 * hidden_size, hidden_size), "column", bias=bias)
        + convolution("conv.conv", (hidden_size, 1, kernel), bias=bias)
        + projection("conv.out_proj", (hidden_size, hidden_size), "row", bias=bias)
    )
    spec = MambaSpec(
        version=2,
        intermediate_size=hidden_size,
        state_size=1,
        conv_kernel=kernel,
        time_step_rank=0,
        num_heads=hidden_size,
    )
    return Mixer(spec, weights)

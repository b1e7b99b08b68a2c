"""Falcon-H1: attention and a Mamba 2 mixer side by side in every block.

Source: transformers 5.24.0, ``models/falcon_h1/modeling_falcon_h1.py``, read 2026-11-30.
"""

from dataclasses import replace

from shardwise.families.blocks import Weights, projection
from shardwise.families.config import ModelConfig
from shardwise.families.decoder import LLAMA, decoder
from shardwise.families.state_space import HYBRID_FIELDS, expanded_size, mamba2
from shardwise.model import AttentionSpec, ModelSpec

_FIELDS = replace(HYBRID_FIELDS, width="mamba_d_ssm")
_SCAN_SENTENCE = "each block's Mamba 2 mixer beside attention is counted; its scan and what it saves are not predicted"


def _mixer_beside(config: ModelConfig, _: AttentionSpec) -> Weights:
    """The Mamba 2 mixer, whose gated norm and output bias have switches of their own."""
    inner, hidden_size = expanded_size(config, _FIELDS), config.count("hidden_size")
    kept = tuple(
        weight
        for weight in mamba2(config, "mamba", _FIELDS, inner=inner).weights
        if not weight.name.startswith("mamba.out_proj")
        and (weight.name != "mamba.norm.weight" or config.flag("mamba_rms_norm"))
    )
    return kept + projection("mamba.out_proj", (hidden_size, inner), "row", bias=config.flag("projectors_bias"))


_STYLE = replace(
    LLAMA,
    final_norm="model.final_layernorm",
    norms=("input_layernorm", "pre_ff_layernorm"),
    mlp_prefix="feed_forward",
    extras=_mixer_beside,
)


def falcon_h1(config: ModelConfig) -> ModelSpec:
    """The model the config describes."""
    model = decoder(config, _STYLE)
    return replace(model, assumptions=(*model.assumptions, _SCAN_SENTENCE))

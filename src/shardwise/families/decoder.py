"""Decoders with attention and a feed-forward part in every block, described by how they differ from Llama."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from shardwise.families.assembly import (
    attention_of,
    language_head,
    language_model,
    latent_attention_of,
    repeat_layers,
)
from shardwise.families.blocks import (
    LLAMA_ATTENTION,
    LLAMA_MLP,
    OUTPUT_NORMS,
    AttentionNames,
    MlpNames,
    QkNorm,
    Weights,
    attention_weights,
    fused_qkv_weights,
    mla_weights,
    mlp_weights,
    norms,
    position_table,
    projection,
    qk_norm_weights,
    token_table,
)
from shardwise.families.config import Flag, ModelConfig
from shardwise.families.windows import RotaryRule, WindowRule, rotary_of, windows_of
from shardwise.model import AttentionKind, AttentionSpec, DenseSpec, LayerSpec, ModelSpec, MoeSpec, Normed, NormKind


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderStyle:
    """How one family's blocks differ from Llama's; every field defaults to what Llama does.

    A ``Flag`` is either the answer or the name of the config field that holds it.
    """

    tokens: str = "model.embed_tokens"
    positions: str = ""
    """A learned position table of this name."""
    embedding_norm: str = ""
    final_norm: str = "model.norm"
    head: str = "lm_head"
    head_bias: Flag = False
    norm: NormKind = "rmsnorm"
    norm_bias: bool = False
    has_norm_weights: Flag = True
    norms: tuple[str, ...] = ("input_layernorm", "post_attention_layernorm")
    """Full-width norms of a block, by name."""
    is_parallel: Flag = False
    parallel_norms: tuple[str, ...] | None = None
    """The norms that are left when the block is parallel; ``None`` means all of them."""
    attention_kind: AttentionKind = "mha"
    unread: tuple[str, ...] = ()
    """Attention fields that the family does not read even when a config holds them."""
    attention_prefix: str = "self_attn"
    attention: AttentionNames = LLAMA_ATTENTION
    fused_qkv: str = ""
    """One matrix for query, key and value, of this name."""
    has_value_views: bool = True
    """Whether values stay a view of that matrix's product; Falcon copies them to where its queries need them."""
    qkv_bias: Flag = "attention_bias"
    output_bias: Flag = "attention_bias"
    qk_norm: QkNorm | None = None
    has_qk_norm: Flag = True
    qk_norm_bias: bool = False
    mlp_prefix: str = "mlp"
    mlp: MlpNames = LLAMA_MLP
    mlp_bias: Flag = "mlp_bias"
    mlp_width: str = "intermediate_size"
    """The config field of the dense feed-forward width."""
    extras: Callable[[ModelConfig, AttentionSpec], Weights] | None = None
    """Further weights of a block that only this family has."""
    extras_layers: Callable[[ModelConfig], tuple[bool, ...]] | None = None
    """Whether each block has the extras; ``None`` means that all do."""
    window: WindowRule = "never"
    window_period: int | str = 0
    rotary: RotaryRule = "all"


class LayerKind(NamedTuple):
    """The fields of a decoder block that can differ from one block to the next."""

    window: int | None
    has_rotary: bool
    is_sparse: bool
    has_extras: bool = True


@dataclass(frozen=True, slots=True)
class FeedForward:
    """The second half of a block."""

    spec: DenseSpec | MoeSpec
    weights: Weights


@dataclass(frozen=True, slots=True, kw_only=True)
class Sparse:
    """Where a family routes tokens to experts, and what its expert part holds."""

    layers: Callable[[ModelConfig], tuple[bool, ...]]
    """Whether each block has experts."""
    experts: Callable[[ModelConfig], FeedForward]


LLAMA = DecoderStyle()


@dataclass(frozen=True, slots=True)
class DenseDecoder:
    """A family of decoders whose blocks are all attention and a dense feed-forward part."""

    style: DecoderStyle = field(default=LLAMA)

    def __call__(self, config: ModelConfig) -> ModelSpec:
        """The model the config describes."""
        return decoder(config, self.style)


@dataclass(frozen=True, slots=True)
class SparseDecoder:
    """A family of decoders with experts in some or all blocks."""

    style: DecoderStyle
    sparse: Sparse

    def __call__(self, config: ModelConfig) -> ModelSpec:
        """The model the config describes."""
        return decoder(config, self.style, self.sparse)


def decoder(config: ModelConfig, style: DecoderStyle, sparse: Sparse | None = None) -> ModelSpec:
    """The model: token table, blocks, final norm, head."""
    hidden_size = config.count("hidden_size")
    windows = windows_of(config, style.window, period=style.window_period)
    rotary = rotary_of(config, style.rotary, windows)
    sparse_layers = sparse.layers(config) if sparse is not None else (False,) * len(windows)
    extras = style.extras_layers(config) if style.extras_layers is not None else (True,) * len(windows)
    kinds = tuple(map(LayerKind, windows, rotary, sparse_layers, extras))
    return language_model(
        config,
        layers=repeat_layers(kinds, lambda kind: decoder_layer(config, style, kind, sparse)),
        embeddings=embeddings_of(config, style),
        final=style_norms(config, style, (style.final_norm,)),
        head=language_head(config, style.head, hidden_size, bias=config.flag(style.head_bias)),
    )


def embeddings_of(config: ModelConfig, style: DecoderStyle) -> Weights:
    """The token table and, where the family has them, the position table and the norm after both."""
    hidden_size = config.count("hidden_size")
    weights = token_table(style.tokens, config.count("vocab_size"), hidden_size)
    if style.positions:
        weights += position_table(style.positions, config.count("max_position_embeddings"), hidden_size)
    return weights + (style_norms(config, style, (style.embedding_norm,)) if style.embedding_norm else ())


def decoder_layer(config: ModelConfig, style: DecoderStyle, kind: LayerKind, sparse: Sparse | None = None) -> LayerSpec:
    """One block: attention, then a dense or routed feed-forward part."""
    is_parallel = config.flag(style.is_parallel)
    names = style.norms if not is_parallel or style.parallel_norms is None else style.parallel_norms
    attention = style_attention(config, style, kind)
    extras = style.extras(config, attention) if style.extras is not None and kind.has_extras else ()
    second = sparse.experts(config) if sparse is not None and kind.is_sparse else dense_part(config, style)
    return LayerSpec(
        mixer=attention,
        feed_forward=second.spec,
        norm=style.norm,
        num_norms=len(names),
        normed=_normed(names),
        is_parallel=is_parallel,
        weights=style_attention_weights(config, style, attention)
        + second.weights
        + style_norms(config, style, names)
        + extras,
    )


def _normed(names: tuple[str, ...]) -> Normed:
    if not OUTPUT_NORMS.intersection(names):
        return "inputs"
    return "both" if len(names) > 2 else "outputs"


def style_attention(config: ModelConfig, style: DecoderStyle, kind: LayerKind) -> AttentionSpec:
    """The attention shape of a block."""
    if style.attention_kind == "mla":
        return latent_attention_of(config)
    config = config.without(*style.unread)
    has_qk_norm = style.qk_norm is not None and config.flag(style.has_qk_norm)
    attention = attention_of(config, window=kind.window, has_rotary=kind.has_rotary, has_qk_norm=has_qk_norm)
    return replace(attention, is_packed=bool(style.fused_qkv) and style.has_value_views)


def style_attention_weights(config: ModelConfig, style: DecoderStyle, attention: AttentionSpec) -> Weights:
    """The attention weights of a block."""
    hidden_size, prefix = config.count("hidden_size"), style.attention_prefix
    qkv_bias, output_bias = config.flag(style.qkv_bias), config.flag(style.output_bias)
    if attention.kind == "mla":
        return mla_weights(prefix, attention, hidden_size, bias=qkv_bias)
    if style.fused_qkv:
        output_shape = (hidden_size, attention.num_attention_heads * attention.v_head_dim)
        weights = fused_qkv_weights(f"{prefix}.{style.fused_qkv}", attention, hidden_size, bias=qkv_bias)
        weights += projection(f"{prefix}.{style.attention.output}", output_shape, "row", bias=output_bias)
    else:
        weights = attention_weights(
            prefix, attention, hidden_size, names=style.attention, qkv_bias=qkv_bias, output_bias=output_bias
        )
    if attention.has_qk_norm and style.qk_norm is not None:
        weights += qk_norm_weights(prefix, attention, style.qk_norm, names=style.attention, bias=style.qk_norm_bias)
    return weights


def dense_part(config: ModelConfig, style: DecoderStyle) -> FeedForward:
    """The dense feed-forward part of a block; four times the hidden size when nobody gives its width."""
    hidden_size = config.count("hidden_size")
    width = config.count_or(style.mlp_width, 4 * hidden_size)
    bias = config.flag(style.mlp_bias)
    return FeedForward(
        DenseSpec(
            intermediate_size=width,
            hidden_act=config.text("hidden_act"),
            is_gated=bool(style.mlp.gate or style.mlp.fused),
            is_packed=bool(style.mlp.fused),
        ),
        mlp_weights(style.mlp_prefix, hidden_size, width, names=style.mlp, bias=bias),
    )


def style_norms(config: ModelConfig, style: DecoderStyle, names: tuple[str, ...]) -> Weights:
    """Full-width norms; OLMo's have no weights."""
    if not config.flag(style.has_norm_weights):
        return ()
    return norms(names, config.count("hidden_size"), bias=style.norm_bias)

"""Hybrids: blocks that mix attention with state spaces or linear attention, dense or with experts."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from shardwise.families.assembly import language_head, language_model, num_layers, per_layer, repeat_layers
from shardwise.families.blocks import Weights, norm, projection, token_table
from shardwise.families.config import ModelConfig
from shardwise.families.decoder import (
    LLAMA,
    DecoderStyle,
    FeedForward,
    LayerKind,
    Sparse,
    dense_part,
    embeddings_of,
    style_attention,
    style_attention_weights,
    style_norms,
)
from shardwise.families.experts import (
    ExpertStyle,
    SharedExpert,
    by_sparse_step,
    every_layer,
    expert_part,
    shared_expert_weights,
    sparse,
)
from shardwise.families.gpt_styles import UP_DOWN
from shardwise.families.llama_styles import NO_BIAS
from shardwise.families.moe_styles import QWEN_EXPERTS, granite_feed_forward
from shardwise.families.state_space import (
    HYBRID_FIELDS,
    MambaFields,
    Mixer,
    expanded_size,
    gated_delta_net,
    lightning_attention,
    mamba1,
    mamba2,
)
from shardwise.model import AttentionSpec, LayerSpec, ModelSpec, Weight

MixerWord = Literal["attention", "recurrent"]

_MIXER_WORDS: dict[str, MixerWord] = {
    "attention": "attention",
    "full_attention": "attention",
    "mamba": "recurrent",
    "linear_attention": "recurrent",
}


class HybridKind(NamedTuple):
    """The fields in which the blocks of a hybrid model differ."""

    mixer: MixerWord
    is_sparse: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class HybridStyle:
    """How a hybrid is put together: attention blocks, a recurrent mixer, and the rule for which block is which."""

    decoder: DecoderStyle
    mixers: Callable[[ModelConfig], tuple[MixerWord, ...]]
    recurrent: Callable[[ModelConfig], Mixer]
    sparse: Sparse | None = None


@dataclass(frozen=True, slots=True)
class Hybrid:
    """A family of hybrids."""

    style: HybridStyle

    def __call__(self, config: ModelConfig) -> ModelSpec:
        """The model the config describes."""
        style = self.style
        mixers = style.mixers(config)
        sparse_layers = style.sparse.layers(config) if style.sparse else (False,) * len(mixers)
        kinds = tuple(map(HybridKind, mixers, sparse_layers))
        return language_model(
            config,
            layers=repeat_layers(kinds, lambda kind: _layer(config, style, kind)),
            embeddings=embeddings_of(config, style.decoder),
            final=style_norms(config, style.decoder, (style.decoder.final_norm,)),
            head=language_head(config, style.decoder.head, config.count("hidden_size")),
        )


def _layer(config: ModelConfig, style: HybridStyle, kind: HybridKind) -> LayerSpec:
    mixer = attention_mixer(config, style.decoder) if kind.mixer == "attention" else style.recurrent(config)
    second = style.sparse.experts(config) if style.sparse and kind.is_sparse else dense_part(config, style.decoder)
    return LayerSpec(
        mixer=mixer.spec,
        feed_forward=second.spec,
        norm=style.decoder.norm,
        num_norms=len(style.decoder.norms),
        weights=mixer.weights + second.weights + style_norms(config, style.decoder, style.decoder.norms),
    )


def attention_mixer(config: ModelConfig, style: DecoderStyle) -> Mixer:
    """Attention as the first half of a block."""
    kind = LayerKind(window=None, has_rotary=style.rotary == "all", is_sparse=False)
    attention = style_attention(config, style, kind)
    extras = style.extras(config, attention) if style.extras else ()
    return Mixer(attention, style_attention_weights(config, style, attention) + extras)


def _listed_mixers(config: ModelConfig, *names: str) -> tuple[MixerWord, ...] | None:
    """Mixers from a list of layer types in the config."""
    for name in names:
        words = config.words(name)
        if words is not None:
            return tuple(_mixer_word(config, name, word) for word in per_layer(config, name, words))
    return None


def _mixer_word(config: ModelConfig, name: str, word: str) -> MixerWord:
    return _MIXER_WORDS.get(word) or config.refuse_type(name, word, f"one of {', '.join(_MIXER_WORDS)}")


def _jamba_mixers(config: ModelConfig) -> tuple[MixerWord, ...]:
    period, offset = config.count("attn_layer_period"), config.count_or_zero("attn_layer_offset")
    return tuple("attention" if index % period == offset else "recurrent" for index in range(num_layers(config)))


def _jamba_sparse(config: ModelConfig) -> tuple[bool, ...]:
    period, offset = config.count("expert_layer_period"), config.count_or_zero("expert_layer_offset")
    has_experts = config.count("num_experts") > 1
    return tuple(has_experts and index % period == offset for index in range(num_layers(config)))


def _bamba_mixers(config: ModelConfig) -> tuple[MixerWord, ...]:
    indices = frozenset(config.counts("attn_layer_indices") or ())
    return tuple("attention" if index in indices else "recurrent" for index in range(num_layers(config)))


def _granite_mixers(config: ModelConfig) -> tuple[MixerWord, ...]:
    listed = _listed_mixers(config, "layer_types", "layers_block_type")
    if listed is not None:
        return listed
    return tuple("recurrent" for _ in range(num_layers(config)))


def _qwen_mixers(config: ModelConfig) -> tuple[MixerWord, ...]:
    every = config.count_or("full_attention_interval", 4)
    listed = _listed_mixers(config, "layer_types")
    if listed is not None:
        return listed
    words: tuple[MixerWord, MixerWord] = ("attention", "recurrent")
    return tuple(words[bool((index + 1) % every)] for index in range(num_layers(config)))


def _minimax_mixers(config: ModelConfig) -> tuple[MixerWord, ...]:
    listed = _listed_mixers(config, "layer_types")
    words: tuple[MixerWord, MixerWord] = ("recurrent", "attention")
    return listed or tuple(words[(index + 1) % 2] for index in range(num_layers(config)))


def _query_gate(config: ModelConfig, attention: AttentionSpec) -> Weights:
    """The gate on the attention output, which the file keeps as the second half of ``q_proj``."""
    shape = (attention.num_attention_heads * attention.head_dim, config.count("hidden_size"))
    gate = projection("self_attn.q_proj", shape, "column", bias=config.flag("attention_bias"))
    return tuple(replace(weight, name=f"{weight.name}[gate]") for weight in gate)


def _mamba2_of(config: ModelConfig) -> Mixer:
    return mamba2(config, "mamba", HYBRID_FIELDS, inner=expanded_size(config, HYBRID_FIELDS))


_BAMBA_STYLE = replace(
    LLAMA,
    final_norm="model.final_layernorm",
    norms=("input_layernorm", "pre_ff_layernorm"),
    mlp_prefix="feed_forward",
)
_JAMBA_STYLE = replace(_BAMBA_STYLE, qkv_bias=False, output_bias=False, mlp_bias=False, rotary="none")
_QWEN_STYLE = replace(LLAMA, qk_norm="head", mlp_bias=False, extras=_query_gate)

JAMBA = Hybrid(
    HybridStyle(
        decoder=_JAMBA_STYLE,
        mixers=_jamba_mixers,
        recurrent=lambda config: mamba1(config, "mamba", HYBRID_FIELDS, has_inner_norms=True),
        sparse=sparse(ExpertStyle(prefix="feed_forward", router="router", width="intermediate_size"), _jamba_sparse),
    )
)
BAMBA = Hybrid(HybridStyle(decoder=_BAMBA_STYLE, mixers=_bamba_mixers, recurrent=_mamba2_of))
QWEN3_NEXT = Hybrid(
    HybridStyle(
        decoder=_QWEN_STYLE,
        mixers=_qwen_mixers,
        recurrent=lambda config: gated_delta_net(config, has_joint_inputs=True),
        sparse=sparse(QWEN_EXPERTS, by_sparse_step),
    )
)
QWEN3_5 = Hybrid(
    HybridStyle(
        decoder=_QWEN_STYLE,
        mixers=_qwen_mixers,
        recurrent=lambda config: gated_delta_net(config, has_joint_inputs=False),
    )
)
MINIMAX = Hybrid(
    HybridStyle(
        decoder=NO_BIAS,
        mixers=_minimax_mixers,
        recurrent=lightning_attention,
        sparse=sparse(ExpertStyle(width="intermediate_size")),
    )
)
QWEN3_5_MOE = Hybrid(replace(QWEN3_5.style, sparse=sparse(QWEN_EXPERTS)))


def granite_moe_hybrid(config: ModelConfig) -> ModelSpec:
    """Granite 4: Mamba 2 with some attention, experts beside a shared part, or the shared part alone."""
    rotates = config.text_or("position_embedding_type", "") == "rope"
    style = HybridStyle(
        decoder=replace(LLAMA, rotary="all" if rotates else "none"),
        mixers=_granite_mixers,
        recurrent=_mamba2_of,
        sparse=Sparse(layers=every_layer, experts=granite_feed_forward),
    )
    return Hybrid(style)(config)


_NEMOTRON_LETTERS = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
_NEMOTRON_WORDS = {"linear_attention": "mamba", "full_attention": "attention"}
_NEMOTRON_FIELDS = MambaFields(
    state="ssm_state_size",
    conv="conv_kernel",
    heads="mamba_num_heads",
    head_dim="mamba_head_dim",
    groups="n_groups",
    bias="use_bias",
    conv_bias="use_conv_bias",
)
_NEMOTRON_STYLE = replace(
    LLAMA, attention_prefix="mixer", qkv_bias=False, output_bias=False, mlp_prefix="mixer", mlp=UP_DOWN, rotary="none"
)


def nemotron_h(config: ModelConfig) -> ModelSpec:
    """Nemotron-H and Nemotron 3: every block is one of Mamba 2, attention, a feed-forward part or experts.

    The class of transformers keeps head and token table apart whatever the config says.
    """
    config, hidden_size = config.with_values(tie_word_embeddings=False), config.count("hidden_size")
    return language_model(
        config,
        layers=repeat_layers(_nemotron_words(config), lambda word: _nemotron_layer(config, word)),
        embeddings=token_table("model.embeddings", config.count("vocab_size"), hidden_size),
        final=norm("model.norm_f", hidden_size),
        head=language_head(config, "lm_head", hidden_size),
    )


def _nemotron_words(config: ModelConfig) -> tuple[str, ...]:
    words = config.words("layers_block_type") or config.words("layer_types")
    if words is None:
        words = tuple(config.text("hybrid_override_pattern"))
    plain = tuple(_NEMOTRON_LETTERS.get(word) or _NEMOTRON_WORDS.get(word, word) for word in words)
    for word in plain:
        if word not in _NEMOTRON_LETTERS.values():
            config.refuse_type("hybrid_override_pattern", word, "made of M, *, - and E")
    return plain


def _nemotron_layer(config: ModelConfig, word: str) -> LayerSpec:
    mixer: Mixer | None = None
    second: FeedForward | None = None
    if word == "mamba":
        inner = config.count("mamba_num_heads") * config.count("mamba_head_dim")
        mixer = mamba2(config, "mixer", _NEMOTRON_FIELDS, inner=inner)
    elif word == "attention":
        mixer = attention_mixer(config, _NEMOTRON_STYLE)
    elif word == "mlp":
        second = dense_part(config, _NEMOTRON_STYLE)
    else:
        second = _nemotron_experts(config)
    first_weights, second_weights = mixer.weights if mixer else (), second.weights if second else ()
    return LayerSpec(
        mixer=mixer.spec if mixer else None,
        feed_forward=second.spec if second else None,
        norm="rmsnorm",
        num_norms=1,
        weights=norm("norm", config.count("hidden_size")) + first_weights + second_weights,
    )


def _nemotron_shared_width(config: ModelConfig) -> int:
    return config.count_or_zero("moe_shared_expert_intermediate_size")


_NEMOTRON_EXPERTS = ExpertStyle(
    prefix="mixer",
    is_gated=False,
    shared=SharedExpert(name="shared_experts", width=_nemotron_shared_width, names=UP_DOWN, bias="mlp_bias"),
)


def _nemotron_experts(config: ModelConfig) -> FeedForward:
    """Ungated experts; with ``moe_latent_size`` they work on tokens projected down to that width."""
    latent, hidden_size = config.optional_count("moe_latent_size"), config.count("hidden_size")
    if latent is None:
        return expert_part(config, _NEMOTRON_EXPERTS)
    bias = config.flag("mlp_bias")
    narrow = expert_part(config.with_values(hidden_size=latent), replace(_NEMOTRON_EXPERTS, shared=None))
    routed = tuple(weight for weight in narrow.weights if weight.is_expert)
    router: Weights = (
        Weight(
            name="mixer.gate.weight",
            shape=(config.count("num_experts"), hidden_size),
            split="replicated",
            role="router",
        ),
    )
    weights = (
        router
        + routed
        + projection("mixer.fc1_latent_proj", (latent, hidden_size), "replicated", bias=bias)
        + projection("mixer.fc2_latent_proj", (hidden_size, latent), "replicated", bias=bias)
        + shared_expert_weights(config, _NEMOTRON_EXPERTS)
    )
    return FeedForward(narrow.spec, weights)

"""Encoder-decoders: T5, mT5, UMT5 and BART, mBART."""

from dataclasses import dataclass, replace

from shardwise.families.assembly import (
    NO_POSITION_LIMIT,
    attention_of,
    language_head,
    language_model,
    num_layers,
    repeat_layers,
)
from shardwise.families.blocks import (
    AttentionNames,
    MlpNames,
    Weights,
    attention_weights,
    mlp_weights,
    norm,
    position_table,
    token_table,
)
from shardwise.families.config import ModelConfig
from shardwise.families.gpt_styles import PLAIN_HEADS
from shardwise.model import AttentionSpec, DenseSpec, LayerSpec, ModelSpec, Normed, Stack, Weight

_T5_ATTENTION = AttentionNames(query="q", key="k", value="v", output="o")
_BART_ATTENTION = AttentionNames(output="out_proj")
_BART_MLP = MlpNames(gate="", up="fc1", down="fc2")
BART_POSITION_OFFSET = 2
"""BART's position tables have two rows before the first position."""


def t5(config: ModelConfig) -> ModelSpec:
    """T5 and mT5: relative position biases in the first block of each stack, norms without shift.

    T5 1.0 shares the token table with the head; 1.1, Flan and mT5 keep a head of their own
    (``tie_word_embeddings`` false), as their checkpoints do.
    """
    return _t5(config, has_bias_everywhere=False)


def umt5(config: ModelConfig) -> ModelSpec:
    """UMT5: T5 with relative position biases in every block."""
    return _t5(config, has_bias_everywhere=True)


def _t5(config: ModelConfig, *, has_bias_everywhere: bool) -> ModelSpec:
    hidden_size, depth = config.count("hidden_size"), num_layers(config)
    decoder_depth = config.count_or("num_decoder_layers", depth)
    encoder_kinds = tuple((False, has_bias_everywhere or index == 0) for index in range(depth))
    decoder_kinds = tuple((True, has_bias_everywhere or index == 0) for index in range(decoder_depth))
    if config.words("architectures") == ("T5EncoderModel",):
        decoder_kinds = ()
    stacks = ("encoder", "decoder") if decoder_kinds else ("encoder",)
    dropout = config.value("hidden_dropout")
    spec = language_model(
        config.with_values(attention_dropout=dropout, max_position_embeddings=NO_POSITION_LIMIT),
        layers=repeat_layers(
            encoder_kinds + decoder_kinds, lambda kind: _t5_layer(config, is_decoder=kind[0], has_bias=kind[1])
        ),
        embeddings=token_table("shared", config.count("vocab_size"), hidden_size),
        final=tuple(w for stack in stacks for w in norm(f"{stack}.final_layer_norm", hidden_size)),
        head=language_head(config, "lm_head", hidden_size),
    )
    return spec if decoder_kinds else replace(spec, head_weights=(), has_head=False, tie_word_embeddings=False)


def _t5_layer(config: ModelConfig, *, is_decoder: bool, has_bias: bool) -> LayerSpec:
    hidden_size, width = config.count("hidden_size"), config.count("intermediate_size")
    gate, _, act = config.text("feed_forward_proj").rpartition("-")
    names = MlpNames(gate="wi_0", up="wi_1", down="wo") if gate == "gated" else MlpNames(gate="", up="wi", down="wo")
    attention = attention_of(config.without("num_key_value_heads"), has_rotary=False, is_causal=is_decoder)
    cross = replace(attention, is_causal=False) if is_decoder else None
    weights = attention_weights("layer.0.SelfAttention", attention, hidden_size, names=_T5_ATTENTION)
    if has_bias:
        buckets = config.count("relative_attention_num_buckets")
        weights += (
            Weight(
                name="layer.0.SelfAttention.relative_attention_bias.weight",
                shape=(buckets, attention.num_attention_heads),
                split="replicated",
                role="other",
            ),
        )
    if cross:
        weights += attention_weights("layer.1.EncDecAttention", cross, hidden_size, names=_T5_ATTENTION)
    last = 2 if cross else 1
    weights += mlp_weights(f"layer.{last}.DenseReluDense", hidden_size, width, names=names)
    for index in range(last + 1):
        weights += norm(f"layer.{index}.layer_norm", hidden_size)
    return LayerSpec(
        stack="decoder" if is_decoder else "encoder",
        mixer=attention,
        feed_forward=DenseSpec(intermediate_size=width, hidden_act=act, is_gated=gate == "gated"),
        cross_attention=cross,
        norm="rmsnorm",
        num_norms=last + 1,
        weights=weights,
    )


@dataclass(frozen=True, slots=True)
class Bart:
    """BART, whose norms read sums, and its multilingual sibling, which norms what enters and the end of each stack."""

    has_final_norms: bool

    def __call__(self, config: ModelConfig) -> ModelSpec:
        """The model the config describes."""
        hidden_size = config.count("hidden_size")
        positions = config.count("max_position_embeddings") + BART_POSITION_OFFSET
        embeddings = token_table("model.shared", config.count("vocab_size"), hidden_size)
        final: Weights = ()
        stacks: tuple[Stack, Stack] = ("encoder", "decoder")
        for stack in stacks:
            embeddings += position_table(f"model.{stack}.embed_positions", positions, hidden_size)
            embeddings += norm(f"model.{stack}.layernorm_embedding", hidden_size, bias=True)
            if self.has_final_norms:
                final += norm(f"model.{stack}.layer_norm", hidden_size, bias=True)
        normed: Normed = "inputs" if self.has_final_norms else "sums"
        depths = (num_layers(config), config.count("decoder_layers"))
        kinds = tuple(stack for stack, depth in zip(stacks, depths, strict=True) for _ in range(depth))
        return language_model(
            config,
            layers=repeat_layers(kinds, lambda stack: _bart_layer(config, stack, normed=normed)),
            embeddings=embeddings,
            final=final,
            head=language_head(config, "lm_head", hidden_size),
        )


def _bart_layer(config: ModelConfig, stack: Stack, *, normed: Normed) -> LayerSpec:
    hidden_size, is_decoder = config.count("hidden_size"), stack == "decoder"
    width = config.count("decoder_ffn_dim") if is_decoder else config.count("intermediate_size")
    heads = config.count("decoder_attention_heads") if is_decoder else config.count("num_attention_heads")
    attention = attention_of(
        config.without(*PLAIN_HEADS).with_values(num_attention_heads=heads), has_rotary=False, is_causal=is_decoder
    )
    cross = replace(attention, is_causal=False) if is_decoder else None
    weights = _bart_attention("self_attn", attention, hidden_size)
    if cross:
        weights += _bart_attention("encoder_attn", cross, hidden_size)
    return LayerSpec(
        stack=stack,
        mixer=attention,
        feed_forward=DenseSpec(intermediate_size=width, hidden_act=config.text("hidden_act"), is_gated=False),
        cross_attention=cross,
        norm="layernorm",
        num_norms=3 if cross else 2,
        normed=normed,
        weights=weights
        + mlp_weights("", hidden_size, width, names=_BART_MLP, bias=True)
        + norm("final_layer_norm", hidden_size, bias=True),
    )


def _bart_attention(prefix: str, attention: AttentionSpec, hidden_size: int) -> Weights:
    projections = attention_weights(
        prefix, attention, hidden_size, names=_BART_ATTENTION, qkv_bias=True, output_bias=True
    )
    return projections + norm(f"{prefix}_layer_norm", hidden_size, bias=True)


BART = Bart(has_final_norms=False)
MBART = Bart(has_final_norms=True)

"""Makes a :class:`ModelSpec` of layers and tables: shared layers, attention shapes, windows, heads."""

from collections.abc import Callable, Hashable, Iterable
from typing import Literal, TypeVar

from shardwise.errors import ModelError
from shardwise.families.blocks import Weights, output_head
from shardwise.families.config import ModelConfig
from shardwise.model import AttentionSpec, LayerSpec, ModelSpec, Weight

Kind = TypeVar("Kind", bound=Hashable)
Ending = Literal["language", "classification", "none"]
"""What follows the last block: logits over the vocabulary, a classifier, or nothing."""

NO_POSITION_LIMIT = 2**30
"""Stands for families without a table or a trained range of positions."""


def repeat_layers(kinds: Iterable[Kind], build: Callable[[Kind], LayerSpec]) -> tuple[LayerSpec, ...]:
    """One layer for each kind, in order; equal kinds are the same object, so that 126 equal layers cost one."""
    built: dict[Kind, LayerSpec] = {}
    layers: list[LayerSpec] = []
    for kind in kinds:
        if kind not in built:
            built[kind] = build(kind)
        layers.append(built[kind])
    return tuple(layers)


def num_layers(config: ModelConfig) -> int:
    """Blocks of the decoder."""
    return config.count("num_hidden_layers")


def per_layer(config: ModelConfig, name: str, words: tuple[str, ...]) -> tuple[str, ...]:
    """A list with one word for each block, checked for its length."""
    count = num_layers(config)
    if len(words) < count:
        raise ModelError(
            f"{config.path}{name} describes {len(words)} layers, but num_hidden_layers is {count}",
            code="model-field-range",
            fix=f"give {config.path}{name} one entry for each of the {count} layers",
        )
    return words[:count]


def attention_of(
    config: ModelConfig,
    *,
    window: int | None = None,
    has_rotary: bool = True,
    has_qk_norm: bool = False,
    is_causal: bool = True,
) -> AttentionSpec:
    """Multi-head or grouped-query attention as the config gives it, with heads that divide evenly."""
    heads = config.count("num_attention_heads")
    kv_heads = config.count_or("num_key_value_heads", heads)
    if heads % kv_heads:
        origin = "" if config.is_given("num_key_value_heads") else f", the default of {config.model_type},"
        raise ModelError(
            f"{heads} attention heads cannot share {kv_heads} key-value heads{origin} evenly",
            code="model-heads-mismatch",
            fix=f"set {config.path}num_key_value_heads to a divisor of {heads}",
        )
    head_dim = head_dim_of(config)
    return AttentionSpec(
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        v_head_dim=head_dim,
        sliding_window=window,
        has_rotary=has_rotary,
        has_qk_norm=has_qk_norm,
        is_causal=is_causal,
    )


def latent_attention_of(config: ModelConfig) -> AttentionSpec:
    """Multi-head latent attention: the head is a rotary part plus another, values have their own width."""
    heads, rope_dim = config.count("num_attention_heads"), config.count("qk_rope_head_dim")
    return AttentionSpec(
        kind="mla",
        num_attention_heads=heads,
        num_key_value_heads=heads,
        head_dim=config.count("qk_nope_head_dim") + rope_dim,
        v_head_dim=config.optional_count("v_head_dim") or _even_share(config, "v_head_dim"),
        q_lora_rank=config.count_or_zero("q_lora_rank") or None,
        kv_lora_rank=config.count("kv_lora_rank"),
        qk_rope_head_dim=rope_dim,
    )


def head_dim_of(config: ModelConfig) -> int:
    """Width of one head: ``head_dim``, or the hidden size divided by the heads."""
    return config.optional_count("head_dim") or _even_share(config, "head_dim")


def _even_share(config: ModelConfig, name: str) -> int:
    """The hidden size divided by the heads, for a config without the field ``name``."""
    hidden_size, heads = config.count("hidden_size"), config.count("num_attention_heads")
    if hidden_size % heads:
        raise ModelError(
            f"hidden_size {hidden_size} does not divide into {heads} attention heads, and there is no {name}",
            code="model-heads-mismatch",
            fix=f"give {config.path}{name}, or set num_attention_heads to a divisor of {hidden_size}",
        )
    return hidden_size // heads


def ending_of(config: ModelConfig) -> Ending:
    """What the first of the ``architectures`` ends with; a language model head when the config does not say."""
    architectures = config.words("architectures") or ("",)
    name = architectures[0] if architectures else ""
    if name.endswith("ForSequenceClassification"):
        return "classification"
    is_bare = name.endswith("Model") and "For" not in name and "LMHead" not in name and "DoubleHeads" not in name
    return "none" if is_bare else "language"


def num_labels(config: ModelConfig) -> int:
    """Classes of a classification head: ``num_labels``, or the entries of ``id2label``, or 2."""
    labels = config.nested("id2label")
    return config.count_or("num_labels", len(labels) if labels else 2)


def language_head(config: ModelConfig, name: str, width: int, *, bias: bool = False) -> Weights:
    """The output projection over the vocabulary, empty when it is tied to the token table."""
    is_tied = config.flag("tie_word_embeddings")
    return output_head(name, config.count("vocab_size"), width, is_tied=is_tied, bias=bias)


def classifier(config: ModelConfig, width: int) -> Weights:
    """The scoring head decoders get for sequence classification."""
    return (Weight(name="score.weight", shape=(num_labels(config), width), split="replicated"),)


def language_model(
    config: ModelConfig,
    *,
    layers: tuple[LayerSpec, ...],
    embeddings: Weights,
    final: Weights,
    head: Weights,
    side: Weights = (),
) -> ModelSpec:
    """The whole model; what ``architectures`` names decides whether the head is there."""
    ending = ending_of(config)
    if ending == "classification":
        final += classifier(config, config.count("hidden_size"))
    return ModelSpec(
        name=config.text_or("name", config.model_type),
        model_type=config.model_type,
        hidden_size=config.count("hidden_size"),
        vocab_size=config.count("vocab_size"),
        max_position_embeddings=config.count_or("max_position_embeddings", NO_POSITION_LIMIT),
        layers=layers,
        embedding_weights=embeddings,
        final_weights=final,
        head_weights=head if ending == "language" else (),
        side_weights=side,
        tie_word_embeddings=config.flag("tie_word_embeddings") and ending == "language",
        has_head=ending == "language",
        attention_dropout_fraction=config.fraction("attention_dropout"),
        hidden_dropout_fraction=config.fraction("hidden_dropout"),
    )

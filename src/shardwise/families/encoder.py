"""Encoders: BERT, RoBERTa, DistilBERT, ELECTRA and ModernBERT, with the head that ``architectures`` names."""

from collections.abc import Callable
from dataclasses import dataclass

from shardwise.families.assembly import attention_of, language_head, num_labels, num_layers, repeat_layers
from shardwise.families.blocks import (
    AttentionNames,
    MlpNames,
    Weights,
    attention_weights,
    fused_qkv_weights,
    mlp_weights,
    norm,
    norms,
    position_table,
    projection,
    token_table,
)
from shardwise.families.config import ModelConfig
from shardwise.families.gpt_styles import PLAIN_HEADS
from shardwise.model import DenseSpec, LayerSpec, ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderStyle:
    """What an encoder of the BERT lineage calls its parts."""

    root: str
    attention: AttentionNames
    mlp: MlpNames
    layer_norms: tuple[str, str]
    has_token_types: bool = True
    tail: Callable[[ModelConfig, str], "Tail"]
    """What follows the last block, from the config and the architecture's name."""


@dataclass(frozen=True, slots=True)
class Tail:
    """What follows the last block."""

    final: Weights = ()
    head: Weights = ()
    has_head: bool = False


@dataclass(frozen=True, slots=True)
class Encoder:
    """A family of post-norm encoders with learned positions."""

    style: EncoderStyle

    def __call__(self, config: ModelConfig) -> ModelSpec:
        """The model the config describes."""
        style, hidden_size = self.style, config.count("hidden_size")
        width = config.count_or("embedding_size", hidden_size)
        prefix = f"{style.root}.embeddings"
        embeddings = token_table(f"{prefix}.word_embeddings", config.count("vocab_size"), width)
        embeddings += position_table(f"{prefix}.position_embeddings", config.count("max_position_embeddings"), width)
        if style.has_token_types:
            types = config.count("type_vocab_size")
            embeddings += position_table(f"{prefix}.token_type_embeddings", types, width)
        embeddings += norm(f"{prefix}.LayerNorm", width, bias=True)
        if width != hidden_size:
            embeddings += projection(f"{style.root}.embeddings_project", (hidden_size, width), "replicated", bias=True)
        layer = _layer(config, style)
        layers = repeat_layers((None,) * num_layers(config), lambda _: layer)
        return encoder_model(config, layers, embeddings, style.tail(config, architecture_of(config)))


def encoder_model(config: ModelConfig, layers: tuple[LayerSpec, ...], embeddings: Weights, tail: Tail) -> ModelSpec:
    """The encoder as a model."""
    return ModelSpec(
        name=config.text_or("name", config.model_type),
        model_type=config.model_type,
        hidden_size=config.count("hidden_size"),
        vocab_size=config.count("vocab_size"),
        max_position_embeddings=config.count("max_position_embeddings"),
        layers=layers,
        embedding_weights=embeddings,
        final_weights=tail.final,
        head_weights=tail.head,
        tie_word_embeddings=tail.has_head and config.flag("tie_word_embeddings"),
        has_head=tail.has_head,
        attention_dropout_fraction=config.fraction("attention_dropout"),
        hidden_dropout_fraction=config.fraction("hidden_dropout"),
    )


def architecture_of(config: ModelConfig) -> str:
    """The first of ``architectures``, empty when the config does not say."""
    return (config.words("architectures") or ("",))[0] if config.value("architectures") else ""


def _layer(config: ModelConfig, style: EncoderStyle) -> LayerSpec:
    hidden_size, width = config.count("hidden_size"), config.count("intermediate_size")
    attention = attention_of(config.without(*PLAIN_HEADS), has_rotary=False, is_causal=False)
    return LayerSpec(
        stack="encoder",
        mixer=attention,
        feed_forward=DenseSpec(intermediate_size=width, hidden_act=config.text("hidden_act"), is_gated=False),
        norm="layernorm",
        num_norms=2,
        normed="sums",
        weights=attention_weights(
            "attention", attention, hidden_size, names=style.attention, qkv_bias=True, output_bias=True
        )
        + mlp_weights("", hidden_size, width, names=style.mlp, bias=True)
        + norms(style.layer_norms, hidden_size, bias=True),
    )


def _dense(name: str, out_size: int, in_size: int) -> Weights:
    return projection(name, (out_size, in_size), "replicated", bias=True)


def _bert_tail(config: ModelConfig, architecture: str) -> Tail:
    hidden_size, kind = config.count("hidden_size"), architecture.removeprefix("Bert")
    pooler = _dense("bert.pooler.dense", hidden_size, hidden_size)
    if kind == "Model":
        return Tail(pooler)
    if kind in ("ForSequenceClassification", "ForMultipleChoice"):
        labels = 1 if kind == "ForMultipleChoice" else num_labels(config)
        return Tail(pooler + _dense("classifier", labels, hidden_size))
    if kind == "ForTokenClassification":
        return Tail(_dense("classifier", num_labels(config), hidden_size))
    if kind == "ForQuestionAnswering":
        return Tail(_dense("qa_outputs", num_labels(config), hidden_size))
    transform = _dense("cls.predictions.transform.dense", hidden_size, hidden_size)
    transform += norm("cls.predictions.transform.LayerNorm", hidden_size, bias=True)
    if kind == "ForPreTraining":
        transform += pooler + _dense("cls.seq_relationship", 2, hidden_size)
    return Tail(transform, language_head(config, "cls.predictions", hidden_size, bias=True), has_head=True)


def _roberta_tail(config: ModelConfig, architecture: str) -> Tail:
    hidden_size = config.count("hidden_size")
    if architecture.endswith("ForSequenceClassification"):
        dense = _dense("classifier.dense", hidden_size, hidden_size)
        return Tail(dense + _dense("classifier.out_proj", num_labels(config), hidden_size))
    if architecture.endswith("ForTokenClassification"):
        return Tail(_dense("classifier", num_labels(config), hidden_size))
    if architecture.endswith("Model"):
        return Tail(_dense("roberta.pooler.dense", hidden_size, hidden_size))
    transform = _dense("lm_head.dense", hidden_size, hidden_size) + norm("lm_head.layer_norm", hidden_size, bias=True)
    return Tail(transform, language_head(config, "lm_head", hidden_size, bias=True), has_head=True)


def _distilbert_tail(config: ModelConfig, architecture: str) -> Tail:
    hidden_size, kind = config.count("hidden_size"), architecture.removeprefix("DistilBert")
    if kind == "Model":
        return Tail()
    if kind == "ForSequenceClassification":
        dense = _dense("pre_classifier", hidden_size, hidden_size)
        return Tail(dense + _dense("classifier", num_labels(config), hidden_size))
    transform = _dense("vocab_transform", hidden_size, hidden_size) + norm("vocab_layer_norm", hidden_size, bias=True)
    return Tail(transform, language_head(config, "vocab_projector", hidden_size, bias=True), has_head=True)


def _electra_tail(config: ModelConfig, architecture: str) -> Tail:
    hidden_size, width = config.count("hidden_size"), config.count("embedding_size")
    kind = architecture.removeprefix("Electra")
    if kind == "Model":
        return Tail()
    if kind == "ForPreTraining":
        dense = _dense("discriminator_predictions.dense", hidden_size, hidden_size)
        return Tail(dense + _dense("discriminator_predictions.dense_prediction", 1, hidden_size))
    if kind == "ForSequenceClassification":
        dense = _dense("classifier.dense", hidden_size, hidden_size)
        return Tail(dense + _dense("classifier.out_proj", num_labels(config), hidden_size))
    transform = norm("generator_predictions.LayerNorm", width, bias=True)
    transform += _dense("generator_predictions.dense", width, hidden_size)
    return Tail(transform, language_head(config, "generator_lm_head", width, bias=True), has_head=True)


_BERT_ATTENTION = AttentionNames(query="self.query", key="self.key", value="self.value", output="output.dense")
_BERT_MLP = MlpNames(gate="", up="intermediate.dense", down="output.dense")
_BERT_NORMS = ("attention.output.LayerNorm", "output.LayerNorm")

BERT = Encoder(
    EncoderStyle(root="bert", attention=_BERT_ATTENTION, mlp=_BERT_MLP, layer_norms=_BERT_NORMS, tail=_bert_tail)
)
ROBERTA = Encoder(
    EncoderStyle(root="roberta", attention=_BERT_ATTENTION, mlp=_BERT_MLP, layer_norms=_BERT_NORMS, tail=_roberta_tail)
)
ELECTRA = Encoder(
    EncoderStyle(root="electra", attention=_BERT_ATTENTION, mlp=_BERT_MLP, layer_norms=_BERT_NORMS, tail=_electra_tail)
)
DISTILBERT = Encoder(
    EncoderStyle(
        root="distilbert",
        attention=AttentionNames(query="q_lin", key="k_lin", value="v_lin", output="out_lin"),
        mlp=MlpNames(gate="", up="ffn.lin1", down="ffn.lin2"),
        layer_norms=("sa_layer_norm", "output_layer_norm"),
        has_token_types=False,
        tail=_distilbert_tail,
    )
)


def modernbert(config: ModelConfig) -> ModelSpec:
    """ModernBERT: rotary positions, gated feed-forward parts, two of three layers with a local window."""
    hidden_size, bias = config.count("hidden_size"), config.flag("norm_bias")
    every = config.count_or("global_attn_every_n_layers", 3)
    local = config.optional_count("local_attention")
    kinds = tuple((index == 0, local if index % every else None) for index in range(num_layers(config)))
    embeddings = token_table("model.embeddings.tok_embeddings", config.count("vocab_size"), hidden_size)
    embeddings += norm("model.embeddings.norm", hidden_size, bias=bias)
    final = norm("model.final_norm", hidden_size, bias=bias)
    if architecture_of(config).endswith("Model"):
        tail = Tail(final)
    else:
        final += projection("head.dense", (hidden_size, hidden_size), "replicated", bias=config.flag("classifier_bias"))
        final += norm("head.norm", hidden_size, bias=bias)
        head = language_head(config, "decoder", hidden_size, bias=config.flag("decoder_bias"))
        tail = Tail(final, head, has_head=True)
    layers = repeat_layers(kinds, lambda kind: _modernbert_layer(config, is_first=kind[0], window=kind[1]))
    return encoder_model(config, layers, embeddings, tail)


def _modernbert_layer(config: ModelConfig, *, is_first: bool, window: int | None) -> LayerSpec:
    hidden_size, width = config.count("hidden_size"), config.count("intermediate_size")
    attention = attention_of(config.without(*PLAIN_HEADS), window=window, is_causal=False)
    bias = config.flag("attention_bias")
    names = ("mlp_norm",) if is_first else ("attn_norm", "mlp_norm")
    return LayerSpec(
        stack="encoder",
        mixer=attention,
        feed_forward=DenseSpec(intermediate_size=width, hidden_act=config.text("hidden_act"), is_gated=True),
        norm="layernorm",
        num_norms=len(names),
        weights=fused_qkv_weights("attn.Wqkv", attention, hidden_size, bias=bias)
        + projection("attn.Wo", (hidden_size, hidden_size), "row", bias=bias)
        + mlp_weights("mlp", hidden_size, width, names=MlpNames(fused="Wi", down="Wo"), bias=config.flag("mlp_bias"))
        + norms(names, hidden_size, bias=config.flag("norm_bias")),
    )

"""The fields of a Hugging Face ``config.json`` that our decoder needs, and which configs it can build."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from shardwise.families.build import config_of
from shardwise.families.config import TRAINED_NUMBERS, ModelConfig, NumberLimits
from shardwise.families.defaults import family_defaults
from shardwise.step.native_engine import OWN_DECODER_TYPES

MOE_TYPES = ("mixtral", "qwen3_moe")
QK_NORM_TYPES = ("qwen3", "qwen3_moe")
BIAS_TYPES = ("llama", "qwen3", "qwen3_moe")
"""Models whose ``attention_bias`` is read; Qwen2 always has biases, Mistral and Mixtral never."""
SWITCHED_WINDOW_TYPES = ("qwen2", "qwen3", "qwen3_moe")
"""Models that have a sliding window only where ``use_sliding_window`` says so."""
ROPE_TYPES = ("default", "llama3", "linear")
LEFT_OUT = ("mlp_bias", "mlp_only_layers", "attention_dropout", "router_jitter_noise", "quantization_config")
"""Fields that our decoder does not compute where they say anything: biases of the feed-forward network, dense blocks
between blocks of experts, dropout of attention's weights, noise before a router, weights in few bits."""
ROPE_LIMITS = NumberLimits(1e-9, 1e9, "above 0 and finite")
NULL_FIELDS = ("num_key_value_heads", "sliding_window")
"""Counts that may be null: as many heads as of queries, and no window."""
EXPERT_COUNTS = ("num_experts", "num_local_experts")
"""Names of the number of experts in published files: Qwen's and Mixtral's."""

ZERO_INITIALIZER_RATIO = 0.02
"""The value that transformers takes for an ``initializer_range`` of zero."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """Rotary position embedding."""

    kind: str = "default"
    theta_ratio: float = 10000.0
    factor_ratio: float = 1.0
    low_frequency_ratio: float = 1.0
    high_frequency_ratio: float = 4.0
    original_seq_len: int = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderConfig:
    """Sizes of a decoder, spelled as in Hugging Face configs."""

    model_type: str
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    rms_norm_eps_ratio: float
    initializer_ratio: float
    rope: RopeConfig
    tie_word_embeddings: bool
    has_qkv_bias: bool
    has_output_bias: bool
    has_qk_norm: bool
    num_experts: int = 0
    num_experts_per_tok: int = 0
    normalises_routing: bool = True
    padding_row: int | None = None
    """Row of the token table that begins at zero and has no gradient as an embedding, as in torch's."""

    @property
    def is_moe(self) -> bool:
        """Whether blocks route tokens to experts."""
        return self.num_experts > 0


def completed(fields: Mapping[str, object]) -> dict[str, object]:
    """The config with every field that transformers' class of its family fills in where a file omits it.

    A null is no omission: key-value heads are then as many as heads, and a head is an even share of the hidden size.
    Numbers and switches are written in the type of that class, which takes no 1 for a true and no 64.0 for a 64.

    Raises:
        ModelError: a field is not what the family takes there.
    """
    model_type = str(fields["model_type"])
    config = config_of(fields, model_type)
    found = {name: _typed(config, name, default) for name, default in family_defaults(model_type).items()}
    num_heads = config.count("num_attention_heads")
    found["num_key_value_heads"] = config.count_or("num_key_value_heads", num_heads)
    found["head_dim"] = config.count_or("head_dim", config.count("hidden_size") // num_heads)
    found["rope_theta"] = _rotation(fields).given.get("rope_theta", found["rope_theta"])
    if "num_experts" in found:
        count = found.pop("num_experts")
        own_name = "num_local_experts" if model_type == "mixtral" else "num_experts"
        names = [name for name in EXPERT_COUNTS if name in fields] or [own_name]
        found |= dict.fromkeys(names, count)
    return {**fields, **found}


def _typed(config: ModelConfig, name: str, default: object) -> object:
    """A field as its family's class has it."""
    if isinstance(default, bool):
        return config.flag(name)
    if name in TRAINED_NUMBERS:
        return config.required_number(name, TRAINED_NUMBERS[name])
    if isinstance(default, float):
        return config.number(name, otherwise=0.0)
    if not isinstance(default, int) or (name in NULL_FIELDS and config.value(name) is None):
        return config.value(name)
    return config.count(name) if config.value(name) != 0 else 0


def is_supported(fields: Mapping[str, object]) -> bool:
    """Whether our decoder computes exactly what this config says; otherwise transformers builds the model."""
    return fields.get("model_type") in OWN_DECODER_TYPES and left_out(fields) is None


def left_out(fields: Mapping[str, object]) -> str | None:
    """A field of a config of our decoder's families that says something which our decoder does not compute."""
    whole = completed(fields)
    if whole["hidden_act"] != "silu":
        return "hidden_act"
    if _uses_sliding_window(whole):
        return "sliding_window"
    if _rope_kind(whole) not in ROPE_TYPES:
        return "rope_type"
    if whole.get("decoder_sparse_step", 1) != 1:
        return "decoder_sparse_step"
    return next((name for name in LEFT_OUT if whole.get(name)), None)


def read_config(fields: Mapping[str, object]) -> DecoderConfig:
    """The sizes in a config that :func:`is_supported`.

    Raises:
        ModelError: a field is not what the family takes there, or heads cannot be rotated.
    """
    whole = completed(fields)
    model_type = str(whole["model_type"])
    if _int(whole, "head_dim") % 2:
        config_of(fields, model_type).refuse_range("head_dim", _int(whole, "head_dim"), "even, as pairs are rotated")
    is_moe = model_type in MOE_TYPES
    has_bias = model_type in BIAS_TYPES and bool(whole.get("attention_bias"))
    return DecoderConfig(
        model_type=model_type,
        hidden_size=_int(whole, "hidden_size"),
        intermediate_size=_int(whole, "moe_intermediate_size" if model_type == "qwen3_moe" else "intermediate_size"),
        num_hidden_layers=_int(whole, "num_hidden_layers"),
        num_attention_heads=_int(whole, "num_attention_heads"),
        num_key_value_heads=_int(whole, "num_key_value_heads"),
        head_dim=_int(whole, "head_dim"),
        vocab_size=_int(whole, "vocab_size"),
        rms_norm_eps_ratio=float(str(whole["rms_norm_eps"])),
        initializer_ratio=float(str(whole["initializer_range"])) or ZERO_INITIALIZER_RATIO,
        rope=_rope(whole),
        tie_word_embeddings=bool(whole["tie_word_embeddings"]),
        has_qkv_bias=model_type == "qwen2" or has_bias,
        has_output_bias=has_bias,
        has_qk_norm=model_type in QK_NORM_TYPES,
        num_experts=_int(whole, *EXPERT_COUNTS) if is_moe else 0,
        num_experts_per_tok=_int(whole, "num_experts_per_tok") if is_moe else 0,
        normalises_routing=model_type != "qwen3_moe" or bool(whole["norm_topk_prob"]),
        padding_row=_padding_row(whole),
    )


def _padding_row(whole: Mapping[str, object]) -> int | None:
    """The row of ``pad_token_id``, from the end where it is negative; none where the table has no such row."""
    row, rows = whole.get("pad_token_id"), _int(whole, "vocab_size")
    return row % rows if isinstance(row, int) and -rows <= row < rows else None


def _uses_sliding_window(whole: Mapping[str, object]) -> bool:
    is_on = bool(whole["use_sliding_window"]) if whole["model_type"] in SWITCHED_WINDOW_TYPES else True
    return is_on and whole.get("sliding_window") is not None


def _rotation(fields: Mapping[str, object]) -> ModelConfig:
    """transformers 5 writes ``rope_parameters``; earlier ones ``rope_theta`` and ``rope_scaling``, which go first."""
    model_type = str(fields["model_type"])
    whole = ModelConfig(model_type, fields, {})
    for name in ("rope_scaling", "rope_parameters"):
        found = whole.nested(name)
        if found:
            return ModelConfig(model_type, found, {}, f"{name}.")
    return ModelConfig(model_type, {}, {}, "rope_parameters.")


def _rope_kind(whole: Mapping[str, object]) -> str:
    rotation = _rotation(whole)
    return rotation.text_or("rope_type", rotation.text_or("type", "default"))


def _rope(whole: Mapping[str, object]) -> RopeConfig:
    kind, rotation = _rope_kind(whole), _rotation(whole)
    theta = replace(rotation, given=whole).required_number("rope_theta", TRAINED_NUMBERS["rope_theta"])
    if kind == "default":
        return RopeConfig(theta_ratio=theta)
    factor = rotation.required_number("factor", ROPE_LIMITS)
    if kind == "linear":
        return RopeConfig(kind=kind, theta_ratio=theta, factor_ratio=factor)
    trained = {"original_max_position_embeddings": whole["max_position_embeddings"], **rotation.given, **whole}
    return RopeConfig(
        kind=kind,
        theta_ratio=theta,
        factor_ratio=factor,
        low_frequency_ratio=rotation.required_number("low_freq_factor", ROPE_LIMITS),
        high_frequency_ratio=rotation.required_number("high_freq_factor", ROPE_LIMITS),
        original_seq_len=replace(rotation, given=trained).count("original_max_position_embeddings"),
    )


def _int(whole: Mapping[str, object], *names: str) -> int:
    return int(str(next(whole[name] for name in names if whole.get(name) is not None)))

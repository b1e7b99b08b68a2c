"""The fields of a Hugging Face ``config.json`` that our decoder needs, and which configs it can build."""

from collections.abc import Mapping
from dataclasses import dataclass

from shardwise.step.own_runtime import OWN_DECODER_TYPES

MOE_TYPES = ("mixtral", "qwen3_moe")
QK_NORM_TYPES = ("qwen3", "qwen3_moe")
ROPE_TYPES = ("default", "llama3", "linear")
DEFAULT_ROPE_THETA = 10000.0
DEFAULT_WINDOWS = {"mistral": 4096}
"""Tokens of the sliding window that a config has without saying so. Source: transformers ``MistralConfig``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """Rotary position embedding."""

    kind: str = "default"
    theta_ratio: float = DEFAULT_ROPE_THETA
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

    @property
    def is_moe(self) -> bool:
        """Whether blocks route tokens to experts."""
        return self.num_experts > 0


def is_supported(fields: Mapping[str, object]) -> bool:
    """Whether our decoder computes exactly what this config says; otherwise transformers builds the model."""
    rope = _rope_fields(fields)
    return (
        fields.get("model_type") in OWN_DECODER_TYPES
        and fields.get("hidden_act", "silu") == "silu"
        and not _uses_sliding_window(fields)
        and rope.get("rope_type", rope.get("type", "default")) in ROPE_TYPES
        and not fields.get("mlp_bias")
        and not fields.get("mlp_only_layers")
        and fields.get("decoder_sparse_step", 1) == 1
        and not fields.get("quantization_config")
    )


def read_config(fields: Mapping[str, object]) -> DecoderConfig:
    """The sizes in a config that :func:`is_supported`."""
    model_type = str(fields["model_type"])
    hidden_size, num_heads = _int(fields, "hidden_size"), _int(fields, "num_attention_heads")
    is_moe = model_type in MOE_TYPES
    num_experts = _int(fields, "num_local_experts", "num_experts", default=8 if model_type == "mixtral" else 128)
    width = _int(fields, "moe_intermediate_size", "intermediate_size") if is_moe else _int(fields, "intermediate_size")
    return DecoderConfig(
        model_type=model_type,
        hidden_size=hidden_size,
        intermediate_size=width,
        num_hidden_layers=_int(fields, "num_hidden_layers"),
        num_attention_heads=num_heads,
        num_key_value_heads=_int(fields, "num_key_value_heads", default=num_heads),
        head_dim=_int(fields, "head_dim", default=hidden_size // num_heads),
        vocab_size=_int(fields, "vocab_size"),
        rms_norm_eps_ratio=_float(fields, "rms_norm_eps", 1e-6),
        initializer_ratio=_float(fields, "initializer_range", 0.02),
        rope=_rope(fields),
        tie_word_embeddings=bool(fields.get("tie_word_embeddings", False)),
        has_qkv_bias=model_type == "qwen2" or bool(fields.get("attention_bias", False)),
        has_output_bias=model_type != "qwen2" and bool(fields.get("attention_bias", False)),
        has_qk_norm=model_type in QK_NORM_TYPES,
        num_experts=num_experts if is_moe else 0,
        num_experts_per_tok=_int(fields, "num_experts_per_tok", default=2) if is_moe else 0,
        normalises_routing=bool(fields.get("norm_topk_prob", model_type == "mixtral")),
    )


def _uses_sliding_window(fields: Mapping[str, object]) -> bool:
    model_type = str(fields.get("model_type"))
    if model_type in ("qwen2", "qwen3", "qwen3_moe"):
        return bool(fields.get("use_sliding_window", False))
    return fields.get("sliding_window", DEFAULT_WINDOWS.get(model_type)) is not None


def _rope_fields(fields: Mapping[str, object]) -> Mapping[str, object]:
    """transformers 5 writes ``rope_parameters``; earlier ones ``rope_theta`` and ``rope_scaling``."""
    for name in ("rope_parameters", "rope_scaling"):
        found = fields.get(name)
        if isinstance(found, Mapping):
            return found
    return {}


def _rope(fields: Mapping[str, object]) -> RopeConfig:
    scaling = _rope_fields(fields)
    theta = scaling.get("rope_theta", fields.get("rope_theta")) or DEFAULT_ROPE_THETA
    return RopeConfig(
        kind=str(scaling.get("rope_type", scaling.get("type", "default"))),
        theta_ratio=float(str(theta)),
        factor_ratio=_float(scaling, "factor", 1.0),
        low_frequency_ratio=_float(scaling, "low_freq_factor", 1.0),
        high_frequency_ratio=_float(scaling, "high_freq_factor", 4.0),
        original_seq_len=_int(scaling, "original_max_position_embeddings", default=8192),
    )


def _int(fields: Mapping[str, object], *names: str, default: int | None = None) -> int:
    for name in names:
        value = fields.get(name)
        if isinstance(value, int):
            return value
    return default or 0


def _float(fields: Mapping[str, object], name: str, default: float) -> float:
    value = fields.get(name)
    return float(value) if isinstance(value, int | float) else default

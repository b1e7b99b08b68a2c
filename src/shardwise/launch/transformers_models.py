"""What transformers has of the families that our own decoder does not compute: asked before processes start.

Source: transformers 5.24.0, ``MODEL_FOR_CAUSAL_LM_MAPPING_NAMES`` and ``_supports_sdpa`` of its classes, read
2026-11-29; ``tests/launch/test_transformers_models.py`` compares with the version that is installed.
"""

from shardwise.families.wrappers import WRAPPERS
from shardwise.model import ModelSpec

__all__ = ["EAGER_ALONE", "WITHOUT_CLASS", "has_class", "is_wrapped", "needs_eager_attention"]

EAGER_ALONE = frozenset(
    ("bloom", "falcon_mamba", "gemma2", "gpt_neo", "gpt_oss", "mamba", "mamba2", "mpt", "vaultgemma")
)
"""Families whose attention transformers computes by writing scores out, or that have none to choose a kernel for."""
ENCODERS = ("distilbert", "modernbert", "mt5", "t5", "umt5")
TEXT_PARTS = ("mllama_text_model", "qwen2_5_vl_text", "qwen2_vl_text", "qwen3_vl_moe_text", "qwen3_vl_text")
CODE_BESIDE_WEIGHTS = (
    "RefinedWeb",
    "RefinedWebModel",
    "Yi",
    "baichuan",
    "chatglm",
    "code_llama",
    "deepseek",
    "gpt_sw3",
    "internlm",
    "internlm2",
    "kimi_k2",
    "mimo",
    "minicpm",
    "orion",
    "phi-msft",
    "qwen",
    "stablelm_epoch",
)
"""Names in configs whose code lies beside the weights and not in transformers, or that it knows by another name."""
WITHOUT_CLASS = frozenset((*ENCODERS, *TEXT_PARTS, *CODE_BESIDE_WEIGHTS))


def has_class(model: ModelSpec) -> bool:
    """Whether ``AutoModelForCausalLM`` knows the model's family."""
    return model.model_type not in WITHOUT_CLASS


def is_wrapped(model: ModelSpec) -> bool:
    """Whether the model is a language model with parts for images or sound around it."""
    return model.model_type in WRAPPERS


def needs_eager_attention(model: ModelSpec) -> bool:
    """Whether transformers refuses to build the model with fused attention."""
    return model.model_type in EAGER_ALONE

"""Names inside models: the decoder layer that FSDP wraps, and the projections that an adapter goes to."""

from collections.abc import Mapping
from dataclasses import dataclass

from shardwise.model import ModelSpec

DECODER_LAYERS: Mapping[str, str] = {
    "llama": "LlamaDecoderLayer",
    "mistral": "MistralDecoderLayer",
    "mixtral": "MixtralDecoderLayer",
    "qwen2": "Qwen2DecoderLayer",
    "qwen2_moe": "Qwen2MoeDecoderLayer",
    "qwen3": "Qwen3DecoderLayer",
    "qwen3_moe": "Qwen3MoeDecoderLayer",
    "gemma": "GemmaDecoderLayer",
    "gemma2": "Gemma2DecoderLayer",
    "gemma3_text": "Gemma3DecoderLayer",
    "phi": "PhiDecoderLayer",
    "phi3": "Phi3DecoderLayer",
    "gpt2": "GPT2Block",
    "gpt_neox": "GPTNeoXLayer",
    "falcon": "FalconDecoderLayer",
    "opt": "OPTDecoderLayer",
    "bloom": "BloomBlock",
    "bert": "BertLayer",
    "roberta": "RobertaLayer",
    "xlm-roberta": "XLMRobertaLayer",
    "deepseek_v3": "DeepseekV3DecoderLayer",
    "olmo2": "Olmo2DecoderLayer",
    "gpt_oss": "GptOssDecoderLayer",
    "llama4_text": "Llama4TextDecoderLayer",
}
"""Class of the decoder layer by ``model_type`` of transformers 5.24 (``models/*/modeling_*.py``)."""
FUSED_PROJECTIONS: Mapping[str, str] = {
    "baichuan": "W_pack",
    "falcon": "query_key_value",
    **dict.fromkeys(("falcon-h1", "falcon_h1", "falcon3", "falcon-e"), ""),
    "gpt_neox": "query_key_value",
    "pythia": "query_key_value",
    "bloom": "query_key_value",
    "chatglm": "query_key_value",
    "gpt2": "c_attn",
    "phi3": "qkv_proj",
    "phi-3": "qkv_proj",
    **dict.fromkeys(("phi-3.5-moe", "phimoe"), ""),
    "starcoder": "c_attn",
    "starcoder2": "",
}
"""The matrix of queries, keys and values by a word in a model's name or type; empty where three matrices hold them.

The longest word counts: Falcon-H1, Falcon 3, Phi-3.5-MoE and StarCoder 2 are unlike the models they are named after.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class WrapClasses:
    """Names of classes that FSDP may wrap."""

    of_model: tuple[str, ...]
    """Decoder layer classes of the model; empty where the model is not known."""
    known: tuple[str, ...]


def wrap_classes(model: ModelSpec | None, name: str) -> WrapClasses:
    """The classes of a model, by its type, or by a word in its name where only that is known."""
    model_type = model.model_type if model is not None else ""
    of_model = (DECODER_LAYERS[model_type],) if model_type in DECODER_LAYERS else ()
    if not of_model and "xlm-roberta" in name.lower():
        of_model = (DECODER_LAYERS["xlm-roberta"],)
    return WrapClasses(of_model=of_model, known=tuple(DECODER_LAYERS.values()))


def fused_projection(model: ModelSpec | None, name: str) -> str:
    """The matrix that holds queries, keys and values together; empty where they are apart, or nothing is known."""
    text = f"{name} {model.model_type if model is not None else ''}".lower()
    words = [word for word in FUSED_PROJECTIONS if word in text]
    return FUSED_PROJECTIONS[max(words, key=len)] if words else ""

"""What transformers has of the families that our own decoder does not compute: asked before processes start.

Source: transformers 5.24.0, ``MODEL_FOR_CAUSAL_LM_MAPPING_NAMES`` and ``_supports_sdpa`` of its classes, read
2026-11-29; ``tests/launch/test_transformers_models.py`` compares with the version that is installed.
"""

from collections.abc import Mapping

from shardwise.families.reading import written_config
from shardwise.families.wrappers import WRAPPERS, wrapped_text
from shardwise.model import ModelSpec

__all__ = [
    "ADAPTERS_MOVED",
    "ATTENTION_DROPOUT",
    "CARRIES_ACROSS_DOCUMENTS",
    "EAGER_ALONE",
    "SEES_LATER",
    "SEES_TOO_MUCH",
    "WITHOUT_BLOCK_MASKS",
    "WITHOUT_CLASS",
    "carries_across_documents",
    "has_class",
    "has_moved_adapters",
    "is_wrapped",
    "needs_eager_attention",
    "sees_too_much",
]

EAGER_ALONE = frozenset(
    ("bloom", "falcon_mamba", "gemma2", "gpt_neo", "gpt_oss", "mamba", "mamba2", "mpt", "vaultgemma")
)
"""Families whose attention transformers computes by writing scores out, or that have none to choose a kernel for."""
SEES_TOO_MUCH = frozenset(
    (
        "bert",
        "bert-generation",
        "big_bird",
        "camembert",
        "cpmant",
        "data2vec-text",
        "electra",
        "ernie",
        "megatron-bert",
        "prophetnet",
        "reformer",
        "rembert",
        "roberta",
        "roberta-prelayernorm",
        "roc_bert",
        "roformer",
        "xlm",
        "xlm-roberta",
        "xlm-roberta-xl",
        "xlnet",
        "xmod",
    )
)
"""Families in which the loss of a token depends on later ones: encoders, and three whose places or streams depend on
what follows.

``tests/train/test_causality.py`` replaces later tokens in every family and finds these.
"""
SEES_LATER: Mapping[str, tuple[object, ...]] = {"is_causal": (False,), "use_bidirectional_attention": (True, "all")}
"""Fields of a config, and the values with which a causal family becomes one in which tokens see later ones."""
CARRIES_ACROSS_DOCUMENTS = frozenset(
    (
        "bailing_hybrid",
        "bamba",
        "deepseek_v4",
        "falcon_h1",
        "falcon_mamba",
        "granitemoehybrid",
        "inkling2_loop_text",
        "inkling2_text",
        "inkling_text",
        "jamba",
        "kimi_linear",
        "lara_mini",
        "lfm2",
        "lfm2_moe",
        "lfm3",
        "mamba",
        "mamba2",
        "minimax",
        "nemotron_h",
        "olmo_hybrid",
        "qwen3_5",
        "qwen3_5_moe",
        "qwen3_5_moe_text",
        "qwen3_5_text",
        "qwen3_next",
        "qwen4_exp",
        "qwen4_exp_text",
        "recurrent_gemma",
        "rwkv",
        "xlstm",
        "zamba",
        "zamba2",
        "zaya",
        "bart",
        "bigbird_pegasus",
        "blenderbot",
        "blenderbot-small",
        "bloom",
        "marian",
        "mbart",
        "moshi",
        "mvp",
        "openai-gpt",
        "pegasus",
        "plbart",
        "trocr",
    )
)
"""Families whose packed documents are not apart: those with a state or a convolution that reads on from one document
into the next, and those that take no positions or no mask of documents. The same test packs documents and finds them.
"""
WITHOUT_BLOCK_MASKS = frozenset(
    (
        "aria_text",
        "axk2",
        "blt",
        "cohere_compass_text",
        "deepseek_v32",
        "doge",
        "dots3_note",
        "dots3_note_text",
        "falcon",
        "gemma4_assistant",
        "gemma4_unified_assistant",
        "glm_moe_dsa",
        "gpt-sw3",
        "gpt2",
        "gpt_bigcode",
        "minimax_m3_vl_text",
        "moss_transcribe_diarize",
        "olmoe",
        "persimmon",
        "stablelm",
    )
)
"""Families with fused attention, but not with ``flex_attention``, the kind that needs no whole mask; doge declares it,
and torch's compiler does not take its scores.
"""
ATTENTION_DROPOUT = ("attention_dropout", "attn_pdrop", "attention_probs_dropout_prob")
"""Fields of dropout inside attention, which ``flex_attention`` has not."""
ADAPTERS_MOVED = frozenset(
    (
        *("afmoe", "deepseek_v2", "deepseek_v3", "deepseek_v32", "dots1", "ernie4_5_moe", "exaone_moe", "glm4_moe"),
        *("glm4_moe_lite", "glm_moe_dsa", "hunyuan_v1_moe", "qwen3_next", "solar_open"),
    )
)
"""Families with dense feed-forward matrices whose adapters peft takes for those of experts, which have the same names.

Source: peft 0.21.2, ``_convert_peft_config_moe``.
"""
ENCODERS = ("distilbert", "modernbert", "mt5", "t5", "umt5")
TEXT_PARTS = (
    "glm4v_moe_text",
    "mllama_text_model",
    "qwen2_5_vl_text",
    "qwen2_vl_text",
    "qwen3_vl_moe_text",
    "qwen3_vl_text",
)
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
    """Whether the model is a language model with parts for images or sound around it, of a known wrapper or not."""
    return model.model_type in WRAPPERS or wrapped_text(written_config(model)) is not None


def needs_eager_attention(model: ModelSpec) -> bool:
    """Whether transformers refuses to build the model with fused attention."""
    return model.model_type in EAGER_ALONE


def sees_too_much(model: ModelSpec) -> bool:
    """Whether tokens of the model's family see those that they are to predict."""
    return model.model_type in SEES_TOO_MUCH


def carries_across_documents(fields: Mapping[str, object]) -> bool:
    """Whether transformers lets packed documents of a config's model see something of each other."""
    model_type = fields["model_type"]
    return model_type in CARRIES_ACROSS_DOCUMENTS or (model_type == "falcon" and bool(fields.get("alibi")))


def has_moved_adapters(model: ModelSpec) -> bool:
    """Whether peft would load adapters of dense feed-forwards as those of experts."""
    return model.model_type in ADAPTERS_MOVED

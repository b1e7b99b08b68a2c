"""The ``params.json`` that Meta and Mistral put beside their weights, as the ``config.json`` of the same model.

Source: meta-llama/llama-models ``models/llama3/model.py`` (``FeedForward``), mistralai/mistral-inference
``src/mistral_inference/args.py``, both read 2026-11-30.
"""

from collections.abc import Mapping

from shardwise.errors import ModelError
from shardwise.families.config import ModelConfig

SIZES = ("dim", "n_layers", "n_heads")
PLAIN_MULTIPLE = 256
"""Meta's default of ``multiple_of``."""
DESCRIBED = ("moe", "quantization", "lora", "rope_scaling")
"""Objects that a ``params.json`` may hold and the config does not lose; any other one describes parts of its own."""

Fields = Mapping[str, object]


def is_params_json(fields: Fields) -> bool:
    """Whether the fields are those of a ``params.json``, and not of a ``config.json``."""
    return "model_type" not in fields and "architectures" not in fields and all(name in fields for name in SIZES)


def config_of_params(fields: Fields) -> dict[str, object]:
    """The fields of a Llama, or of a Mixtral where there are experts, with the width by Meta's rule where none stands.

    >>> config_of_params({"dim": 8192, "n_layers": 80, "n_heads": 64, "n_kv_heads": 8, "vocab_size": 32000,
    ...                   "multiple_of": 4096, "ffn_dim_multiplier": 1.3})["intermediate_size"]
    28672

    Raises:
        ModelError: the vocabulary is left to a tokenizer, or the model has parts that such a config cannot hold.
    """
    others = sorted(name for name, value in fields.items() if isinstance(value, Mapping) and name not in DESCRIBED)
    if others:
        raise ModelError(
            f"the params.json describes {', '.join(others):.60}, which the decoder it is read as does not have",
            code="model-unknown-family",
            fix="give the config.json of the same model from the Hugging Face Hub",
        )
    params = ModelConfig("llama", fields, {})
    if params.value("vocab_size") in (None, -1):
        raise ModelError(
            "the params.json leaves vocab_size to the tokenizer beside the weights",
            code="model-field-missing",
            fix='write the size of the tokenizer as "vocab_size", such as 32000 for Llama 2',
        )
    config: dict[str, object] = {
        "model_type": "llama",
        "hidden_size": params.count("dim"),
        "num_hidden_layers": params.count("n_layers"),
        "num_attention_heads": params.count("n_heads"),
        "num_key_value_heads": params.count_or("n_kv_heads", params.count("n_heads")),
        "intermediate_size": params.optional_count("hidden_dim") or feed_forward_width(params),
        "vocab_size": params.count("vocab_size"),
        "rope_theta": params.number("rope_theta", otherwise=10_000.0),
        "rms_norm_eps": params.number("norm_eps", otherwise=1e-5),
        "tie_word_embeddings": params.flag("tied_embeddings"),
    }
    if params.value("head_dim") is not None:
        config["head_dim"] = params.count("head_dim")
    experts = params.nested("moe")
    if experts is not None:
        config |= {"model_type": "mixtral"} | {
            name: experts.get(name) for name in ("num_experts", "num_experts_per_tok")
        }
    return {name: fields[name] for name in ("name",) if name in fields} | config


def feed_forward_width(params: ModelConfig) -> int:
    """Two thirds of four times the width, times ``ffn_dim_multiplier``, rounded up to ``multiple_of``."""
    multiple = params.count_or("multiple_of", PLAIN_MULTIPLE)
    width = int(8 * params.count("dim") / 3)
    if params.value("ffn_dim_multiplier") is not None:
        width = int(params.number("ffn_dim_multiplier", otherwise=1.0) * width)
    return multiple * -(-width // multiple)

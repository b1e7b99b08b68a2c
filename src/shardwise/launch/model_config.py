"""The Hugging Face config of a plan's model, whether the plan names it, holds it or only says how large it is."""

import json
from collections.abc import Mapping

from shardwise.errors import ModelError
from shardwise.families.catalogue import catalogue_config
from shardwise.model import AttentionSpec, DenseSpec, ModelSpec


def model_config(model: ModelSpec) -> Mapping[str, object]:
    """The fields of ``config.json``.

    Raises:
        ModelError: the model was built by hand, or only its size is known and it is no Llama-like decoder.
    """
    spec: object = json.loads(model.spec_json) if model.spec_json else None
    if isinstance(spec, str):
        return catalogue_config(spec)
    if isinstance(spec, Mapping) and "num_parameters" not in spec:
        return spec
    return _llama_config(model)


def _llama_config(model: ModelSpec) -> Mapping[str, object]:
    attention, block = model.attention, model.layers[0].feed_forward if model.layers else None
    if attention is None or not isinstance(block, DenseSpec) or not block.is_gated:
        raise ModelError(
            f"the model {model.name} has no config that a worker could build it from",
            code="train-model",
            fix="give a catalogue name or the path of a config.json",
        )
    return {**_sizes(model, attention, block), "model_type": "llama", "hidden_act": "silu", "rms_norm_eps": 1e-5}


def _sizes(model: ModelSpec, attention: AttentionSpec, block: DenseSpec) -> dict[str, object]:
    return {
        "hidden_size": model.hidden_size,
        "intermediate_size": block.intermediate_size,
        "num_hidden_layers": model.num_hidden_layers,
        "num_attention_heads": attention.num_attention_heads,
        "num_key_value_heads": attention.num_key_value_heads,
        "head_dim": attention.head_dim,
        "vocab_size": model.vocab_size,
        "max_position_embeddings": model.max_position_embeddings,
        "tie_word_embeddings": model.tie_word_embeddings,
    }

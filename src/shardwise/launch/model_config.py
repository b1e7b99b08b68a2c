"""The Hugging Face config of a plan's model, whether the plan names it, holds it or only says how large it is."""

from collections.abc import Mapping

from shardwise.errors import ModelError
from shardwise.families.reading import written_config
from shardwise.model import AttentionSpec, DenseSpec, ModelSpec
from shardwise.step.native_engine import OWN_DECODER_TYPES
from shardwise.train.decoder.config import completed


def model_config(model: ModelSpec) -> Mapping[str, object]:
    """The fields of ``config.json``, and of our own decoder's models also those that the file omits.

    Raises:
        ModelError: the model was built by hand, nobody says which model it is, or only its size is known and it is no
            Llama-like decoder.
    """
    return _whole(written_config(model) or _llama_config(model), model)


def _whole(fields: Mapping[str, object], model: ModelSpec) -> Mapping[str, object]:
    """The fields with the model's name and what ranks read of every model, which a file may leave to its family."""
    if model.model_type == "generic":
        raise ModelError(
            "the config names no family (model_type), so nobody knows which model it is the sizes of",
            code="train-model",
            fix='add "model_type": "llama" to the config, or the name of another family',
        )
    named = {**fields, "model_type": model.model_type, "vocab_size": model.vocab_size}
    return completed(named) if model.model_type in OWN_DECODER_TYPES else named


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

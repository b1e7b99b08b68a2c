"""Models small enough to compute with by hand, and their weights: the same records as any other model's."""

from collections.abc import Iterator
from typing import Literal

import numpy as np

from shardwise.course.numerics.arrays import TABLES, Array, WeightKey, Weights
from shardwise.errors import ModelError
from shardwise.families import read_model
from shardwise.model import AttentionSpec, DenseSpec, LayerSpec, ModelSpec, MoeSpec, Weight

FloatType = Literal["float64", "float32"]
WEIGHT_DEVIATION = 0.2
"""Large enough that attention and experts choose, small enough that nothing saturates."""


def tiny_model(
    *,
    hidden_size: int = 16,
    intermediate_size: int = 24,
    num_hidden_layers: int = 2,
    num_attention_heads: int = 4,
    num_key_value_heads: int = 2,
    vocab_size: int = 32,
    num_experts: int = 0,
    num_experts_per_tok: int = 2,
) -> ModelSpec:
    """A Llama of a few thousand weights, or a Mixtral when there are experts.

    >>> tiny_model().num_params
    4944
    """
    fields: dict[str, object] = {
        "model_type": "mixtral" if num_experts else "llama",
        "hidden_size": hidden_size,
        "intermediate_size": intermediate_size,
        "num_hidden_layers": num_hidden_layers,
        "num_attention_heads": num_attention_heads,
        "num_key_value_heads": num_key_value_heads,
        "vocab_size": vocab_size,
        "max_position_embeddings": 4096,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
    }
    if num_experts:
        fields |= {"num_local_experts": num_experts, "num_experts_per_tok": num_experts_per_tok}
    else:
        fields |= {"attention_bias": False, "mlp_bias": False}
    return read_model(fields)


def weights_of(model: ModelSpec) -> Iterator[tuple[WeightKey, Weight]]:
    """Every weight of a model with its key, in order of the forward."""
    tables = model.embedding_weights + model.final_weights + model.head_weights
    yield from (((TABLES, weight.name), weight) for weight in tables)
    for number, layer in enumerate(model.layers):
        yield from (((number, weight.name), weight) for weight in layer.weights)


def initial_weights(model: ModelSpec, *, seed: int = 0, dtype: FloatType = "float64") -> Weights:
    """Normal weights; norms around one.

    Raises:
        ModelError: the model has a part that is not re-enacted.
    """
    require_plain(model)
    random = np.random.default_rng(seed)

    def draw(weight: Weight) -> Array:
        drawn = WEIGHT_DEVIATION * random.standard_normal(weight.shape)
        return (drawn + 1 if weight.role == "norm" else drawn).astype(dtype)

    return {key: draw(weight) for key, weight in weights_of(model)}


def require_plain(model: ModelSpec) -> None:
    """Refuse what the re-enactments do not compute.

    Raises:
        ModelError: the model is not a decoder like Llama or Mixtral.
    """
    if model.tie_word_embeddings or not all(_is_plain(layer) for layer in model.layers):
        raise ModelError(
            f"{model.name} has parts that are not re-enacted in numbers: decoders with rotary grouped-query attention, "
            "RMSNorm, SwiGLU or experts without shared ones, and an untied head are",
            code="simulate-model",
            fix="take a model like Llama 3 or Mixtral, or leave the model out",
        )


def _is_plain(layer: LayerSpec) -> bool:
    mixer, block = layer.mixer, layer.feed_forward
    has_attention = (
        isinstance(mixer, AttentionSpec)
        and (mixer.kind, mixer.is_causal, mixer.has_rotary, mixer.has_qk_norm) == ("mha", True, True, False)
        and mixer.sliding_window is None
        and mixer.head_dim % 2 == 0
    )
    is_gated = isinstance(block, DenseSpec | MoeSpec) and block.is_gated and block.hidden_act == "silu"
    has_shared = isinstance(block, MoeSpec) and block.shared_intermediate_size > 0
    roles = {weight.role for weight in layer.weights}
    return has_attention and is_gated and not has_shared and layer.norm == "rmsnorm" and "bias" not in roles

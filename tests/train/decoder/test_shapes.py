"""The tensors that a launcher expects of a config are those of the decoder that ranks build from it."""

import pytest
import torch

from shardwise.train.decoder.config import read_config
from shardwise.train.decoder.model import Decoder
from shardwise.train.decoder.shapes import tensor_shapes
from train.models import LLAMA, MIXTRAL

QWEN = {**LLAMA, "head_dim": 24, "num_key_value_heads": 2}
CONFIGS = {
    "llama": LLAMA,
    "llama with biases": {**LLAMA, "attention_bias": True},
    "tied": {**LLAMA, "tie_word_embeddings": True},
    "mistral": {**QWEN, "model_type": "mistral", "sliding_window": None},
    "qwen2": {**QWEN, "model_type": "qwen2"},
    "qwen3": {**QWEN, "model_type": "qwen3"},
    "mixtral": MIXTRAL,
    "qwen3_moe": {
        **QWEN,
        **{"model_type": "qwen3_moe", "num_experts": 6, "moe_intermediate_size": 40, "num_experts_per_tok": 2},
    },
}


@pytest.mark.parametrize("name", CONFIGS)
def test_names_and_shapes_are_those_of_the_decoder(name):
    config = read_config(CONFIGS[name])
    with torch.device("meta"):
        decoder = Decoder(config, layers=range(config.num_hidden_layers))
    built = {name: tuple(parameter.shape) for name, parameter in decoder.named_parameters()}
    assert dict(tensor_shapes(config)) == built

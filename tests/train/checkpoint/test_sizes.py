"""What tensors say of the config they were made with, where nothing else does."""

import pytest

from shardwise.train.checkpoint.sizes import SAME_MODEL_FIX, fix_of_shapes, is_whole
from shardwise.train.decoder.config import completed, read_config
from shardwise.train.decoder.shapes import tensor_shapes
from train.models import LLAMA, MIXTRAL

QWEN = {**LLAMA, "model_type": "qwen3", "head_dim": 12}
QWEN_MOE = {**QWEN, "model_type": "qwen3_moe", "moe_intermediate_size": 24, "num_experts": 4, "num_experts_per_tok": 2}


@pytest.mark.parametrize("fields", [LLAMA, QWEN, MIXTRAL, QWEN_MOE], ids=lambda fields: fields["model_type"])
@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("vocab_size", 251),
        ("hidden_size", 96),
        ("num_hidden_layers", 3),
        ("num_key_value_heads", 2),
        ("head_dim", 6),
        ("tie_word_embeddings", True),
    ],
)
def test_a_size_that_differs_is_named_and_no_other(fields, name, size):
    fields = {"head_dim": 8, **fields}
    held = dict(tensor_shapes(read_config({**fields, name: size})))
    shown = str(size).lower()
    assert fix_of_shapes(held, fields) == (
        f'write "{name}": {shown} in the model\'s config.json, as the checkpoint was made'
    )


@pytest.mark.parametrize(
    ("fields", "name", "size"),
    [
        (LLAMA, "intermediate_size", 80),
        (LLAMA, "attention_bias", True),
        (QWEN, "num_attention_heads", 4),
        (MIXTRAL, "num_local_experts", 8),
        (MIXTRAL, "intermediate_size", 48),
        (QWEN_MOE, "num_experts", 8),
        (QWEN_MOE, "moe_intermediate_size", 48),
    ],
    ids=str,
)
def test_so_is_one_that_only_some_families_have(fields, name, size):
    held = dict(tensor_shapes(read_config({**fields, name: size})))
    assert f'write "{name}": {str(size).lower()} in' in fix_of_shapes(held, fields)


def test_tensors_that_say_nothing_leave_the_general_advice():
    assert fix_of_shapes({}, LLAMA) == SAME_MODEL_FIX
    assert fix_of_shapes(dict(tensor_shapes(read_config(LLAMA))), LLAMA) == SAME_MODEL_FIX


def test_a_config_is_whole_when_every_size_is_there():
    assert not is_whole(LLAMA)
    assert is_whole(completed(LLAMA))

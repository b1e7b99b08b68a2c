"""Headers of a checkpoint say whether a model can be filled from it."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from shardwise.errors import CheckpointError
from shardwise.train.decoder.config import read_config
from shardwise.train.decoder.shapes import tensor_shapes
from shardwise.train.pretrained.fitting import require_fitting, require_same_model
from train.models import LLAMA, MIXTRAL

SMALL = {"num_hidden_layers": 2}
QWEN_MOE = {**LLAMA, "model_type": "qwen3_moe", "num_experts": 4, "moe_intermediate_size": 24, "head_dim": 8}
FAMILIES = {
    "llama": LLAMA,
    "tied": {**LLAMA, "tie_word_embeddings": True},
    "qwen2": {**LLAMA, "model_type": "qwen2"},
    "mixtral": MIXTRAL,
    "qwen3_moe": QWEN_MOE,
}


def saved(folder, fields):
    """A checkpoint that transformers writes, in several files with an index."""
    options = {**fields, **SMALL}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(options.pop("model_type"), **options))
    model.save_pretrained(folder, max_shard_size="50KB")
    return folder


def fits(folder, fields):
    require_fitting(folder, tensor_shapes(read_config({**fields, **SMALL})))


def refusal(folder, fields):
    with pytest.raises(CheckpointError) as refused:
        fits(folder, fields)
    assert refused.value.code == "pretrained-tensor"
    return refused.value


@pytest.mark.parametrize("name", FAMILIES)
def test_a_checkpoint_fits_the_config_it_was_saved_with(tmp_path, name):
    fits(saved(tmp_path, FAMILIES[name]), FAMILIES[name])


@pytest.mark.parametrize(
    ("name", "changed", "says"),
    [
        ("llama", {"vocab_size": 264}, "model.embed_tokens.weight is (256, 64) in {folder} and (264, 64) in the model"),
        ("llama", {"intermediate_size": 96}, "mlp.gate_proj.weight is (128, 64) in {folder} and (96, 64) in the model"),
        ("llama", {"num_key_value_heads": 2}, "self_attn.k_proj.weight is (32, 64)"),
        ("llama", {"attention_bias": True}, "holds no tensor model.layers.0.self_attn.q_proj.bias"),
        ("llama", {"model_type": "qwen3", "head_dim": 8}, "holds no tensor model.layers.0.self_attn.q_norm.weight"),
        ("mixtral", {"intermediate_size": 64}, "is (96, 64) in {folder} and (64, 64) in the model"),
        ("qwen3_moe", {"moe_intermediate_size": 32}, "experts.0.gate_proj.weight is (24, 64)"),
        ("qwen3_moe", {"num_experts": 8}, "mlp.gate.weight is (4, 64) in {folder} and (8, 64) in the model"),
    ],
)
def test_another_model_is_refused_by_name_and_shape(tmp_path, name, changed, says):
    error = refusal(saved(tmp_path, FAMILIES[name]), {**FAMILIES[name], **changed})
    assert says.format(folder=tmp_path) in error.message


def test_how_many_others_do_not_fit_is_said(tmp_path):
    error = refusal(saved(tmp_path, LLAMA), {**LLAMA, "intermediate_size": 96})
    assert error.message.endswith("in the model; 5 other tensors do not fit either")


def test_a_checkpoint_of_fewer_layers_is_refused(tmp_path):
    folder = saved(tmp_path, LLAMA)
    with pytest.raises(CheckpointError, match=r"holds no tensor model\.layers\.2\.input_layernorm\.weight; 8 other"):
        require_fitting(folder, tensor_shapes(read_config({**LLAMA, "num_hidden_layers": 3})))


def test_a_file_that_lacks_what_the_index_promises_is_named(tmp_path):
    folder = saved(tmp_path, LLAMA)
    path = sorted(folder.glob("model-*.safetensors"))[0]
    (name, *_), tensors = sorted(load_file(path)), load_file(path)
    del tensors[name]
    save_file(tensors or {"other": torch.zeros(1)}, path)
    with pytest.raises(CheckpointError) as refused:
        fits(folder, LLAMA)
    assert refused.value.code == "pretrained-files"
    assert f"it holds no {name}" in refused.value.message


GEMMA = {"model_type": "gemma3_text", "hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 99}


def beside(folder, config):
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    "config",
    [{}, GEMMA, {"model_type": "gemma3", "text_config": GEMMA}, {"model_type": "gemma3", "text_config": {}}, {"n": 1}],
    ids=str,
)
def test_a_config_of_the_same_model_passes_bare_or_wrapped(tmp_path, config):
    require_same_model(beside(tmp_path, config), GEMMA)


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (LLAMA, "holds weights of a model with model_type llama, and the model to train has gemma3"),
        ({**GEMMA, "num_hidden_layers": 3}, "num_hidden_layers 3, and the model to train has 2"),
        ({"model_type": "gemma3", "text_config": {**GEMMA, "hidden_size": 128}}, "hidden_size 128"),
    ],
    ids=["family", "depth", "wrapped"],
)
def test_a_config_of_another_model_is_refused(tmp_path, config, says):
    with pytest.raises(CheckpointError, match=says) as refused:
        require_same_model(beside(tmp_path, config), GEMMA)
    assert refused.value.code == "pretrained-tensor"

"""A config that no model can be built from is refused before anything starts, whoever builds the model."""

import json

import pytest
import torch
from safetensors.torch import save_file

from shardwise.cli.main import main
from shardwise.launch import buildable

GPT2 = {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 260, "n_positions": 128}
LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 260,
}


MIXTURE = {**LLAMA, "num_key_value_heads": 2, "num_experts_per_tok": 2, "num_local_experts": 4, "model_type": "mixtral"}
DEEPSEEK = {
    **LLAMA,
    "model_type": "deepseek_v3",
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 32,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 16,
}
GEMMA = {**LLAMA, "model_type": "gemma", "head_dim": 16, "num_key_value_heads": 2}


def dry_run(folder, config, capsys, *words):
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    asked = ["train", str(folder / "config.json"), "1xh100-sxm", "--seq-len", "64", "--device", "cpu", "--dry-run"]
    exit_code = main([*asked, "--json", "--out", str(folder / "run"), *words])
    return exit_code, json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({**LLAMA, "rms_norm_eps": "1e-5"}, 'rms_norm_eps is "1e-5", but it must be a finite number'),
        ({**LLAMA, "intermediate_size": None}, "intermediate_size is null, but it must be a whole number"),
        ({**LLAMA, "rope_scaling": {"rope_type": "linear"}}, "has no rope_scaling.factor"),
        ({**LLAMA, "hidden_act": "foo"}, 'transformers builds no llama of this config|hidden_act is "foo"'),
        ({**GPT2, "layer_norm_epsilon": "x"}, "Field 'layer_norm_epsilon' expected float, got str (value: 'x')"),
    ],
    ids=str,
)
def test_a_field_that_a_rank_would_stumble_over_is_refused_with_its_file(tmp_path, config, says, capsys, built_here):
    exit_code, said = dry_run(tmp_path, config, capsys)
    assert exit_code == 2
    assert said["error"].startswith(f"{tmp_path / 'config.json'}: ")
    assert [part for part in says.split("|") if part not in said["error"]] == []
    assert not (tmp_path / "run").exists()


def test_weights_of_a_model_of_transformers_are_compared_tensor_by_tensor(tmp_path, capsys):
    weights = tmp_path / "weights"
    weights.mkdir()
    save_file({"transformer.wte.weight": torch.zeros(260, 65)}, weights / "model.safetensors")
    exit_code, said = dry_run(tmp_path, GPT2, capsys, "--weights", str(weights))
    assert (exit_code, said["code"]) == (2, "pretrained-tensor")
    assert said["error"].startswith("transformer.wte.weight is (260, 65) in")
    assert said["error"].endswith("27 other tensors do not fit either")


def test_a_model_that_takes_too_long_to_build_is_left_to_the_ranks(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(buildable, "BUILDER_S", 0.05)
    exit_code, _ = dry_run(tmp_path, GPT2, capsys)
    assert exit_code == 0


@pytest.mark.parametrize(
    ("config", "words", "code"),
    [
        (GPT2, ["--adapter", "qlora"], "recipe-adapter-matrices"),
        (GPT2, ["--adapter", "lora"], None),
        (
            GEMMA,
            ["--adapter", "qlora", "--lora-targets", "all-linear"],
            None,
        ),
    ],
    ids=["4 bits of transposed matrices", "adapters of transposed matrices", "4 bits of others"],
)
def test_a_model_that_cannot_be_adapted_as_asked_is_refused(tmp_path, config, words, code, capsys, built_here):
    """A matrix that stays as it is under the name of QLoRA gives LoRA's losses, in more memory than was predicted."""
    exit_code, said = dry_run(tmp_path, config, capsys, *words, "--random-weights")
    assert exit_code == (0 if code is None else 2), said
    assert said.get("code") == code
    assert (tmp_path / "run").exists() == (code is None)


@pytest.mark.parametrize(
    ("config", "words", "code"),
    [
        (MIXTURE, ["--router-bias-update-rate", "0.001"], "train-router-bias"),
        (MIXTURE, ["--router-aux-loss-coef", "0.001"], None),
        (DEEPSEEK, ["--router-bias-update-rate", "0.001"], None),
        (DEEPSEEK, ["--router-aux-loss-coef", "0.001"], "train-router-loss"),
    ],
    ids=["no biases", "a loss", "biases", "no loss"],
)
def test_what_a_model_has_not_to_even_out_its_experts_is_refused_before_anything_starts(
    tmp_path, config, words, code, capsys, built_here
):
    exit_code, said = dry_run(tmp_path, config, capsys, *words)
    assert (exit_code, said.get("code")) == ((2, code) if code else (0, None))
    assert (tmp_path / "run").exists() == (code is None)

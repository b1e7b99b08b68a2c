"""Where models come from: names, sizes, files, folders and fields."""

import json
from pathlib import Path

import pytest

from call_counts import count_calls
from shardwise.families import load_models, read_model
from shardwise.families.build import contradicting_class
from shardwise.families.catalogue import catalogue_config

LLAMA = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 3, "vocab_size": 101}


@pytest.mark.parametrize(
    "name",
    ["llama-3.1-8b", "Llama-3.1-8B", " LLAMA-3.1-8B ", "meta-llama/Llama-3.1-8B", "meta-llama/meta-llama-3.1-8b"],
)
def test_names_are_read_whatever_their_case_and_organisation(name):
    model = read_model(name)
    assert model.name == "llama-3.1-8b"
    assert model.spec_json == '"llama-3.1-8b"'


def test_the_same_source_is_the_same_object():
    assert read_model("gpt2") is read_model("openai-community/GPT2")
    assert read_model(dict(LLAMA)) is read_model(dict(reversed(LLAMA.items())))


def test_a_file_a_folder_and_the_fields_give_the_same_model(tmp_path):
    file = tmp_path / "config.json"
    file.write_text(json.dumps(LLAMA), encoding="utf-8")
    assert read_model(file) is read_model(tmp_path)
    assert read_model(str(file)) is read_model(LLAMA)
    assert read_model(str(tmp_path)).num_params == read_model(LLAMA).num_params


def test_the_spec_travels_and_reads_back_to_the_same_model():
    for source in ("mixtral-8x7b", "13B", LLAMA):
        model = read_model(source)
        assert read_model(json.loads(model.spec_json)) is model


def test_a_later_change_of_the_file_is_seen(tmp_path):
    file = tmp_path / "config.json"
    file.write_text(json.dumps(LLAMA), encoding="utf-8")
    before = read_model(file).num_hidden_layers
    file.write_text(json.dumps(LLAMA | {"num_hidden_layers": 5}), encoding="utf-8")
    assert (before, read_model(file).num_hidden_layers) == (3, 5)


def test_a_model_is_named_by_its_config_or_by_family_and_size():
    assert read_model(LLAMA | {"_name_or_path": "/models/tiny-llama/"}).name == "tiny-llama"
    assert read_model(LLAMA | {"name": "mine"}).name == "mine"
    assert read_model(LLAMA).name == "llama-6.40M"


@pytest.mark.parametrize(
    ("model_type", "architecture", "is_said"),
    [
        ("llama", "MistralForCausalLM", True),
        ("mistral", "LlamaForCausalLM", True),
        ("llama", "LlamaForSequenceClassification", False),
        ("llama", "YiForCausalLM", False),
        ("llama", "NobodyKnowsItForCausalLM", False),
    ],
)
def test_a_config_that_names_two_families_is_taken_by_its_model_type_and_that_is_said(
    model_type, architecture, is_said
):
    model = read_model(LLAMA | {"model_type": model_type, "architectures": [architecture], "num_key_value_heads": 4})
    said = [sentence for sentence in model.assumptions if f"names {architecture}, but" in sentence]
    assert (model.model_type, bool(said)) == (model_type, is_said)


def test_no_model_of_the_catalogue_names_two_families():
    two = [entry.name for entry in load_models() if contradicting_class(catalogue_config(entry.name))]
    assert two == []


def test_model_type_stays_as_in_the_config():
    assert read_model({"model_type": "kimi_k2"}).model_type == "kimi_k2"
    assert read_model({"model_type": "RefinedWebModel"}).model_type == "RefinedWebModel"


def test_the_architecture_names_the_family_when_model_type_is_missing():
    fields = {name: value for name, value in LLAMA.items() if name != "model_type"}
    named = fields | {"architectures": ["Qwen2ForCausalLM"], "num_key_value_heads": 2}
    assert read_model(named).model_type == "qwen2"


def test_infinities_in_fields_nobody_reads_do_no_harm():
    config = {"model_type": "mamba2", "time_step_limit": [0.0, float("inf")]}
    assert read_model(config).num_params == read_model({"model_type": "mamba2"}).num_params


def test_defaults_that_decide_the_size_are_told():
    (sentence,) = read_model({"model_type": "llama"}).assumptions
    assert "hidden_size 4096" in sentence
    assert "num_hidden_layers 32" in sentence
    assert read_model("llama-3.1-8b").assumptions == ()


def test_reading_a_known_model_again_is_looking_it_up():
    """A plan names its model every time it is predicted: it must not be built again."""
    for entry in load_models():
        read_model(entry.name)
    assert count_calls(lambda: read_model("llama-3.1-405b")) < 50


def test_building_a_model_for_the_first_time_takes_little():
    """Of 126 blocks, about 200 calls each."""
    read_model("gpt2")
    config = {"model_type": "llama", "num_hidden_layers": 126, "vocab_size": 30_011}
    assert count_calls(lambda: read_model(config)) < 40_000


def test_a_path_object_is_never_taken_for_a_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("gpt2").mkdir()
    Path("gpt2/config.json").write_text(json.dumps(LLAMA), encoding="utf-8")
    assert read_model(Path("gpt2")).model_type == "llama"
    assert read_model("gpt2").model_type == "gpt2"
    assert read_model("./gpt2").model_type == "llama"

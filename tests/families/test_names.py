"""What people call models: mirrors, tuned versions, repositories of the Hub, sizes with active parameters."""

import json

import pytest

from shardwise.errors import ModelError
from shardwise.families import hub, read_model
from shardwise.families.names import known_name

TINY = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 176,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 512,
}


@pytest.fixture(autouse=True)
def no_hub(monkeypatch, tmp_path):
    """An empty cache, and nothing is asked over the network."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return tmp_path / "hub"


def put(cache, repository, config, revision="0123456789abcdef"):
    folder = cache / f"models--{repository.replace('/', '--')}"
    file = folder / "snapshots" / revision / "config.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps(config), encoding="utf-8")
    (folder / "refs").mkdir(exist_ok=True)
    (folder / "refs" / "main").write_text(revision, encoding="ascii")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("unsloth/Qwen3-8B", "qwen3-8b"),
        ("unsloth/Llama-3.1-8B", "llama-3.1-8b"),
        ("unsloth/Meta-Llama-3.1-8B-Instruct-bnb-4bit", "llama-3.1-8b"),
        ("llama-3.1-8b-instruct", "llama-3.1-8b"),
        ("Qwen/Qwen2.5-Coder-7B-Instruct", "qwen2.5-7b"),
        ("RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic", "llama-3.1-70b"),
        ("unsloth/mistral-7b-instruct-v0.3", "mistral-7b-v0.3"),
        ("Qwen3-30B-A3B-Instruct-2507", "qwen3-30b-a3b"),
        ("NousResearch/Meta-Llama-3-8B", "llama-3-8b"),
        ("llama-3.1-9b", None),
        ("acme/Qwen3-8B-pruned", None),
    ],
)
def test_a_mirror_or_a_version_is_the_model_it_is_built_as(text, name):
    assert known_name(text) == name


def test_the_answer_says_that_a_mirror_was_taken_for_the_catalogue():
    model = read_model("unsloth/Qwen3-8B")
    assert model == read_model("qwen3-8b")
    assert model.assumptions[0].startswith("unsloth/Qwen3-8B is taken as qwen3-8b of the catalogue")


def test_a_config_in_the_local_cache_comes_before_the_catalogue(no_hub):
    put(no_hub, "unsloth/Qwen3-8B", TINY)
    model = read_model("unsloth/Qwen3-8B")
    assert (model.name, model.num_hidden_layers) == ("Qwen3-8B", 2)
    assert model.assumptions[0].endswith("read from the local Hub cache (revision 0123456789ab)")


def test_a_repository_of_the_cache_travels_in_the_plan_as_its_config(no_hub):
    put(no_hub, "acme/tiny", TINY)
    spec = json.loads(read_model("acme/tiny").spec_json)
    assert spec["hidden_size"] == 64
    assert read_model(spec) == read_model("acme/tiny")


def test_a_repository_that_nobody_has_says_why_and_what_is_near():
    with pytest.raises(ModelError) as caught:
        read_model("acme/Qwen2.5-Math-7B-pruned")
    assert "HF_HUB_OFFLINE is set" in caught.value.message
    assert caught.value.fix.startswith("try qwen2.5-7b")


def test_the_hub_is_asked_for_the_config_alone_and_within_seconds(monkeypatch):
    pytest.importorskip("huggingface_hub")
    asked = []

    def no_network(request, timeout):
        asked.append((request.full_url, timeout))
        raise OSError("Name or service not known")

    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setattr("urllib.request.urlopen", no_network)
    with pytest.raises(ModelError, match=r"the Hub gave no config.json \(Name or service"):
        read_model("acme/unheard-of")
    assert asked == [("https://huggingface.co/acme/unheard-of/resolve/main/config.json", 3.0)]


def test_what_the_hub_sends_is_read_as_a_config(monkeypatch):
    monkeypatch.setattr("shardwise.families.reading.hub_config", lambda name: hub.HubConfig(text="[]", origin=name))
    with pytest.raises(ModelError, match="holds a JSON list"):
        read_model("acme/unheard-of")


@pytest.mark.parametrize(
    ("text", "total", "active"),
    [
        ("67B-A2B", 67e9, 2e9),
        ("30B-A3B", 30e9, 3e9),
        ("235B-A22B", 235e9, 22e9),
        ("8b-a1b", 8e9, 1e9),
        ("1T-A32B", 1e12, 32e9),
    ],
)
def test_a_size_with_active_parameters_is_a_mixture_of_experts_of_both_counts(text, total, active):
    model = read_model(text)
    assert model.is_moe
    assert model.num_params == pytest.approx(total, rel=0.01)
    assert model.num_active_params == pytest.approx(active, rel=0.03)
    assert "mixture of experts" in model.assumptions[0]


@pytest.mark.parametrize("text", ["8B-A8B", "7B-A8B"])
def test_sizes_that_no_mixture_has_are_refused(text):
    """More active parameters than there are ended in the logarithm of a negative width."""
    with pytest.raises(ModelError, match="no typical mixture of experts"):
        read_model(text)


@pytest.mark.parametrize(
    ("text", "name"),
    [("llama 3.1 8b", "llama-3.1-8b"), ("Llama-3.1_8B", "llama-3.1-8b"), ("olmo2-7b", "olmo-2-7b")],
)
def test_a_name_with_other_separators_is_told_the_one_it_means(text, name):
    """They were told llama-33b and olmo-7b."""
    with pytest.raises(ModelError) as refused:
        read_model(text)
    assert refused.value.fix.startswith(f"try {name}")

"""What people call models: mirrors, tuned versions, repositories of the Hub, sizes with active parameters."""

import json

import pytest

from shardwise.errors import ModelError
from shardwise.families import hub, read_model
from shardwise.families.names import close_names, known_name

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


SAME = [
    ("unsloth/Qwen3-8B", "qwen3-8b"),
    ("unsloth/Meta-Llama-3.1-8B-Instruct-bnb-4bit", "llama-3.1-8b"),
    ("unsloth/llama-3-8b-bnb-4bit", "llama-3-8b"),
    ("unsloth/gemma-3-27b-it-unsloth-bnb-4bit", "gemma-3-27b"),
    ("unsloth/gpt-oss-20b-GGUF", "gpt-oss-20b"),
    ("unsloth/mistral-7b-instruct-v0.3", "mistral-7b-v0.3"),
    ("mlx-community/Meta-Llama-3.1-8B-Instruct-4bit", "llama-3.1-8b"),
    ("hugging-quants/Meta-Llama-3.1-70B-Instruct-AWQ-INT4", "llama-3.1-70b"),
    ("RedHatAI/Meta-Llama-3.1-8B-Instruct-quantized.w4a16", "llama-3.1-8b"),
    ("neuralmagic/Meta-Llama-3.1-405B-Instruct-FP8-dynamic", "llama-3.1-405b"),
    ("google/gemma-3-27b-it-qat-q4_0-gguf", "gemma-3-27b"),
    ("TheBloke/Llama-2-7B-Chat-GGUF", "llama-2-7b"),
    ("TheBloke/Llama-2-13B-GPTQ", "llama-2-13b"),
    ("NousResearch/Meta-Llama-3-8B", "llama-3-8b"),
    ("Qwen/Qwen3-30B-A3B-Instruct-2507-FP8", "qwen3-30b-a3b"),
    ("Qwen/Qwen2.5-72B-Instruct-GPTQ-Int4", "qwen2.5-72b"),
    ("Qwen/Qwen3-4B-MLX-4bit", "qwen3-4b"),
    ("moonshotai/Kimi-K2-Thinking", "kimi-k2"),
    ("llama-3.1-8b.Q4_K_M.gguf", "llama-3.1-8b"),
    ("llama-3.1-8b-instruct", "llama-3.1-8b"),
    ("Llama-3.1_8B", "llama-3.1-8b"),
    ("llama 3.1 8b", "llama-3.1-8b"),
    ("llama3.1:8b", "llama-3.1-8b"),
    ("llama 2 7b chat", "llama-2-7b"),
    ("mixtral 8x7b", "mixtral-8x7b"),
    ("gpt oss 120b", "gpt-oss-120b"),
    ("qwen 3 8b", "qwen3-8b"),
    ("gemma 3 27b", "gemma-3-27b"),
    ("gemma 2 9b it", "gemma-2-9b"),
    ("phi 4", "phi-4"),
    ("kimi k2", "kimi-k2"),
    ("olmo2-7b", "olmo-2-7b"),
]
SHARED = [
    ("qwen2.5-1.5b", "qwen2.5-1.5b", "qwen2-1.5b"),
    ("Qwen/Qwen2.5-1.5B-Instruct", "qwen2.5-1.5b", "qwen2-1.5b"),
    ("unsloth/Qwen2.5-0.5B-bnb-4bit", "qwen2.5-0.5b", "qwen2-0.5b"),
    ("Qwen/Qwen2.5-Coder-7B-Instruct", "qwen2.5-coder-7b", "qwen2.5-7b"),
    ("RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic", "llama-3.3-70b", "llama-3.1-70b"),
    ("deepseek r1", "deepseek-r1", "deepseek-v3-671b"),
    ("unsloth/DeepSeek-R1-GGUF", "deepseek-r1", "deepseek-v3-671b"),
    ("deepseek-r1-distill-qwen-7b", "deepseek-r1-distill-qwen-7b", "qwen2.5-7b"),
    ("Qwen/QwQ-32B-Preview", "qwq-32b", "qwen2.5-32b"),
    ("TheBloke/Mixtral-8x7B-Instruct-v0.1-AWQ", "mixtral-8x7b-v0.1", "mixtral-8x7b"),
    ("microsoft/Phi-3-mini-128k-instruct", "phi-3-mini-128k", "phi-3.5-mini"),
    ("mistral 7b", "mistral-7b", "mistral-7b-v0.1"),
]
REFUSED = [
    ("llama3", "llama-3-8b, llama-3-70b"),
    ("llama 8b", "llama-3-8b, llama-3.1-8b"),
    ("mixtral", "mixtral-8x7b, mixtral-8x22b"),
    ("gpt-oss", "gpt-oss-20b, gpt-oss-120b"),
    ("bert", "bert-base, bert-large"),
    ("qwen3 coder", "qwen3-coder-480b-a35b"),
    ("Qwen/Qwen3-Coder-30B-A3B-Instruct", "qwen3-30b-a3b"),
    ("glm 4.5 air", "glm-5"),
    ("mistralai/Mistral-7B-Instruct-v0.2", "mistral-7b-v0.1, mistral-7b-v0.3"),
    ("lama-3.1-9b", "llama-3.1-8b"),
    ("NousResearch/Hermes-3-Llama-3.1-8B", "llama-3.1-8b"),
    ("deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B", "qwen2-1.5b"),
    ("codellama/CodeLlama-70b-hf", "codellama-7b"),
    ("yi-6b", "yi-34b"),
]
"""Among them a distilled Qwen whose tables are not tied, and a Mistral without the windows of its first version."""


@pytest.mark.parametrize(("text", "name"), SAME)
def test_a_mirror_or_a_version_is_the_model_it_is_built_as(text, name):
    assert known_name(text) == (name, name)
    assert read_model(text) == read_model(name)


@pytest.mark.parametrize(("text", "name", "entry"), SHARED)
def test_a_model_that_is_built_like_another_keeps_the_name_that_was_asked_for(text, name, entry):
    model = read_model(text)
    assert (model.name, model.num_params) == (name, read_model(entry).num_params)
    assert model.assumptions[0] == f"{text} is built as {entry} of the catalogue, so that config is taken"


@pytest.mark.parametrize(("text", "names"), REFUSED)
def test_a_name_that_means_no_model_or_several_is_refused_with_the_nearest(text, names):
    with pytest.raises(ModelError, match=f"close names are {names}"):
        read_model(text)


@pytest.mark.parametrize(
    "text",
    ["vicuna-7b", "command-r", "zephyr-7b-beta", "devstral", "llama-3.1-9b", "acme/Qwen3-8B-pruned"],
)
def test_a_name_is_never_taken_for_another_model(text):
    """vicuna-7b was told baichuan2-7b, and zephyr-7b-beta may not be told bert."""
    assert known_name(text) is None
    assert {"baichuan2-7b", "bert-base"}.isdisjoint(close_names(text))


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

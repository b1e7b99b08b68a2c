"""Families that only the installed transformers knows."""

import json
from types import SimpleNamespace

import pytest

from shardwise.errors import ModelError
from shardwise.families import installed_class, read_model
from shardwise.families.build import build_model

BLOCK = [
    ["model.layers.{}.self_attn.q_proj.weight", [64, 32], "Linear"],
    ["model.layers.{}.self_attn.o_proj.weight", [32, 64], "Linear"],
    ["model.layers.{}.mlp.gate_up_proj.weight", [96, 32], "Linear"],
    ["model.layers.{}.mlp.down_proj.weight", [32, 48], "Linear"],
    ["model.layers.{}.norm.weight", [32], "NovelRMSNorm"],
]
ANSWER = {
    "class": "NovelForCausalLM",
    "version": "9.9.9",
    "weights": [["model.embed_tokens.weight", [100, 32], "Embedding"]]
    + [[name.format(index), shape, module] for index in range(3) for name, shape, module in BLOCK]
    + [["model.norm.weight", [32], "NovelRMSNorm"], ["tower.patch.weight", [7, 11], "Linear"]],
    "stacks": ["model.layers"],
    "table": "model.embed_tokens.weight",
    "head": "model.embed_tokens.weight",
    "fields": {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "hidden_act": "silu"},
}


def answering(monkeypatch, answer):
    monkeypatch.setattr(installed_class, "_answer", lambda _: answer)
    monkeypatch.setattr(installed_class, "is_listed", lambda _: True)


def test_the_class_gives_counts_blocks_and_the_sentence_that_says_so(monkeypatch):
    answering(monkeypatch, ANSWER)
    model = build_model({"model_type": "novel"})
    assert model.num_params == 3200 + 3 * (2048 + 2048 + 3072 + 1536 + 32) + 32 + 77
    assert (model.num_hidden_layers, model.num_side_params, model.tie_word_embeddings) == (3, 77, True)
    assert (model.dense_shapes[0].intermediate_size, model.dense_shapes[0].is_gated) == (48, True)
    assert (model.attention.num_key_value_heads, model.attention.head_dim) == (2, 16)
    assert model.assumptions == (
        "novel is no family of ours: weights and counts are those of NovelForCausalLM as transformers 9.9.9 builds it, "
        "and what its blocks do is read off their names",
    )


def test_experts_that_are_modules_of_their_own_are_stacked(monkeypatch):
    parts = [[f"model.layers.0.mlp.experts.{index}.w1.weight", [48, 32], "Linear"] for index in range(4)]
    parts += [[f"model.layers.0.mlp.experts.{index}.w2.weight", [32, 48], "Linear"] for index in range(4)]
    router = ["model.layers.0.mlp.gate.weight", [4, 32], "Linear"]
    fields = {**ANSWER["fields"], "num_local_experts": 4, "num_experts_per_tok": 2}
    answering(monkeypatch, ANSWER | {"weights": [*ANSWER["weights"][:3], router, *parts], "fields": fields})
    model = build_model({"model_type": "novel"})
    assert (model.moe.num_experts, model.moe.num_experts_per_tok, model.moe.moe_intermediate_size) == (4, 2, 48)
    assert model.num_routed_params == 4 * 2 * 48 * 32


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ({"refused": "ValueError: head_dim must be even"}, "transformers builds no novel of this config: ValueError"),
        (ANSWER | {"stacks": []}, "has no stack of blocks"),
        ({"refused": "KeyError: 'novel'"}, 'the model family "novel" is not known'),
        (None, 'the model family "novel" is not known'),
    ],
)
def test_a_class_that_cannot_be_built_is_refused_with_what_was_said(monkeypatch, answer, words):
    answering(monkeypatch, answer)
    with pytest.raises(ModelError, match=words):
        build_model({"model_type": "novel"})


def test_a_config_that_is_refused_is_asked_once(monkeypatch):
    asked = []
    answers = iter(["", json.dumps({"refused": "ValueError: head_dim must be even"})])
    monkeypatch.setattr(installed_class, "is_listed", lambda _: True)
    monkeypatch.setattr(
        installed_class.subprocess,
        "run",
        lambda *_, **given: asked.append(given["input"]) or SimpleNamespace(stdout=next(answers)),
    )
    words = ['the model family "novel" is not known', *["head_dim must be even"] * 3]
    for said in words:
        with pytest.raises(ModelError, match=said):
            read_model({"model_type": "novel", "width": 7})
    assert len(asked) == 2


def test_without_transformers_the_refusal_says_how_to_install_it(monkeypatch):
    monkeypatch.setattr(installed_class, "find_spec", lambda _: None)
    with pytest.raises(ModelError) as caught:
        build_model({"model_type": "recurrent_gemma"})
    assert "pip install transformers" in caught.value.fix


@pytest.mark.families
@pytest.mark.parametrize(
    ("model_type", "num_params"),
    [("recurrent_gemma", 2_010_263_040), ("bitnet", 2_741_155_840), ("idefics2", 8_061_394_944)],
)
def test_the_installed_class_has_the_count_of_its_defaults(model_type, num_params):
    """transformers 5.24.0 on the meta device."""
    assert read_model({"model_type": model_type}).num_params == num_params


def test_a_name_that_transformers_does_not_list_starts_no_process(monkeypatch):
    monkeypatch.setattr(installed_class, "_answer", lambda _: pytest.fail("a process was started"))
    assert installed_class.is_listed("recurrent_gemma")
    with pytest.raises(ModelError, match='the model family "lama" is not known'):
        build_model({"model_type": "lama"})

"""What is said of transformers without importing it is what the installed version does."""

import json

import pytest
import torch
import transformers
from transformers import CONFIG_MAPPING, AutoModelForCausalLM
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from launch.desk import CONFIG
from shardwise.cli.main import main
from shardwise.families.table import FAMILIES, SAME_AS
from shardwise.launch.transformers_models import ADAPTERS_MOVED, EAGER_ALONE, WITHOUT_CLASS
from shardwise.train.pretrained.conversion import conversion_of
from train.tiny_families import readable_families, tiny_fields

KNOWN = sorted({*FAMILIES, *SAME_AS} - {"generic"})
"""A description without a family is refused earlier."""
needs_the_release_that_was_read = pytest.mark.skipif(
    not transformers.__version__.startswith("5.24."), reason="the tables are those of transformers 5.24"
)


@needs_the_release_that_was_read
def test_families_without_a_class_are_those_that_it_lacks():
    assert {name for name in KNOWN if name not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES} == WITHOUT_CLASS


@needs_the_release_that_was_read
def test_families_with_eager_attention_alone_are_those_that_refuse_the_fused_kind():
    classes = {
        name: AutoModelForCausalLM._model_mapping[CONFIG_MAPPING[name]] for name in KNOWN if name not in WITHOUT_CLASS
    }
    assert {name for name, found in classes.items() if not found._supports_sdpa} == EAGER_ALONE


@pytest.mark.families
@needs_the_release_that_was_read
def test_families_whose_adapters_peft_moves_are_those_with_dense_matrices_of_the_names_it_converts():
    from peft.utils import transformers_weight_conversion as table

    found = set()
    for name in readable_families():
        moved = table._MOE_TARGET_MODULE_MAPPING.get(table._MODEL_TO_CONVERSION_PATTERN.get(name))
        if moved is None:
            continue
        modules = conversion_of(tiny_fields(name)).model.named_modules()
        lasts = {path.rpartition(".")[2] for path, module in modules if isinstance(module, torch.nn.Linear)}
        found |= {name} if lasts & set(moved) else set()
    assert found == ADAPTERS_MOVED


def test_adapters_that_peft_would_load_as_those_of_experts_are_refused(said):
    code, answer = said(tiny_fields("deepseek_v3"), "--adapter", "lora", "--lora-targets", "all-linear")
    assert (code, answer["code"]) == (2, "train-not-supported")
    assert answer["error"].startswith("the native runtime has no adapters beside every matrix of deepseek_v3, of which")
    assert answer["fix"] == "set lora_targets to attention (--lora-targets attention)"


@pytest.fixture
def said(tmp_path, monkeypatch, capsys, built_here):
    """The exit code and the JSON that a dry run of a family says."""
    monkeypatch.chdir(tmp_path)

    def say(fields, *words):
        (tmp_path / "config.json").write_text(json.dumps(fields), encoding="utf-8")
        options = ["--dry-run", "--seq-len", "32", "--out", "run", "--json"]
        code = main(["train", "config.json", "1xh100-sxm", *options, *words])
        return code, json.loads(capsys.readouterr().out)

    return say


def test_a_model_that_has_no_fused_attention_is_refused_before_the_launch(said):
    code, error = said({**CONFIG, "model_type": "gemma2", "architectures": ["Gemma2ForCausalLM"]})
    assert (code, error["code"]) == (2, "train-not-supported")
    assert (
        error["error"] == "the native runtime has no fused attention for gemma2, which transformers builds without it"
    )
    assert error["fix"] == "set attention to eager (--attention eager)"


def test_with_eager_attention_it_is_not(said):
    fields = {**CONFIG, "model_type": "gemma2", "architectures": ["Gemma2ForCausalLM"]}
    assert said(fields, "--attention", "eager")[0] == 0


def test_a_model_without_attention_is_told_the_same(said):
    fields = {"model_type": "mamba", "hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 256}
    assert said(fields)[1]["fix"] == "set attention to eager (--attention eager)"
    assert said(fields, "--attention", "eager")[0] == 0


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"model_type": "t5"}, "t5, of which transformers has no causal language model"),
        ({"model_type": "kimi_k2"}, "kimi_k2, of which transformers has no causal language model"),
        ({"model_type": "gemma3"}, "gemma3, a language model with parts for images or sound around it"),
    ],
)
def test_what_transformers_cannot_build_as_a_decoder_is_refused(said, fields, error):
    code, answer = said(fields)
    assert (code, answer["code"]) == (2, "train-not-supported")
    assert answer["error"] == f"the native runtime has no training of {error}"

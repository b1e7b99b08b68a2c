"""Adapters with a scale and targets of one's own: peft and merged weights compute the same, plans know their size."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from shardwise.catalog import read_cluster
from shardwise.errors import CheckpointError, RecipeError
from shardwise.families import read_model
from shardwise.plan import Plan
from shardwise.predict import predict
from shardwise.recipe import Recipe
from shardwise.rules import require_valid
from shardwise.train.checkpoint.origin import require_continuable
from shardwise.train.lora import Factor, target_names
from shardwise.train.pretrained.merge import export_merged
from train.adapter_member import hold
from train.models import LLAMA, make_job
from train.test_adapters import TEXT, base, loss_of, pretrained_job  # noqa: F401 - a fixture
from train.tiny_families import tiny_fields
from train.world_member import run

CHOSEN = {"adapter": "lora", "lora_rank": 4, "lora_alpha": 12.0, "lora_targets": "q_proj,mlp.*_proj"}
ROOTED = {**CHOSEN, "use_rslora": True, "lora_targets": "self_attn.?_proj"}


@pytest.mark.parametrize(
    ("fields", "scale"), [({}, 2.0), ({"lora_alpha": 8.0}, 0.5), ({"lora_alpha": 8.0, "use_rslora": True}, 2.0)]
)
def test_alpha_is_over_the_rank_or_its_root(fields, scale):
    assert Recipe(seq_len=8, adapter="lora", **fields).adapter_scale_ratio == scale


def next_tokens():
    """Inputs and labels of the step after four."""
    tokens, first = torch.tensor(list(TEXT.encode())), 4 * 8 * 32
    return tokens[first : first + 256].view(8, 32), tokens[first + 1 : first + 257].view(8, 32)


@pytest.mark.parametrize(
    "recipe", [pytest.param(CHOSEN, marks=pytest.mark.runs), ROOTED], ids=["names and patterns", "rank-stabilised"]
)
def test_peft_computes_the_loss_of_the_run(worlds, base, tmp_path, recipe):  # noqa: F811
    job = pretrained_job(base, tmp_path, num_steps=4, **recipe)
    worlds[2].run(run, job)
    spec = replace(job.checkpoint, resume_from=str(tmp_path / "run"), folder=None, export_folder=None)
    after = worlds[2].run(run, replace(job, num_steps=5, checkpoint=spec))[0]
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base / "model"), tmp_path / "adapter")
    assert loss_of(model, *next_tokens()) == pytest.approx(after.losses[-1], rel=1e-4)


@pytest.mark.parametrize(
    "recipe", [pytest.param(ROOTED, marks=pytest.mark.runs), {**CHOSEN, "adapter": "qlora"}], ids=["lora", "qlora"]
)
def test_merged_weights_have_the_logits_of_base_and_adapter(worlds, base, tmp_path, recipe):  # noqa: F811
    """Both begin from the weights in 16 or 32 bits: 4 bits are how a run keeps them, not what is exported."""
    job = pretrained_job(base, tmp_path, num_steps=2, **recipe)
    worlds[2].run(run, job)
    merged = replace(
        job.checkpoint, export_folder=str(tmp_path / "merged"), folder=str(tmp_path / "run2"), is_merged=True
    )
    worlds[2].run(run, replace(job, checkpoint=merged))
    adapted = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base / "model"), tmp_path / "adapter")
    inputs, _ = next_tokens()
    with torch.no_grad():
        expected = adapted(input_ids=inputs).logits
        found = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")(input_ids=inputs).logits
        plain = AutoModelForCausalLM.from_pretrained(base / "model")(input_ids=inputs).logits
    assert (found - expected).abs().max() < 1e-5
    assert (plain - expected).abs().max() > 1e-3


def test_merged_weights_of_gpt2_have_the_logits_of_base_and_adapter(worlds, tmp_path):
    """Its matrices are stored as (in, out), with queries, keys and values in one."""
    fields = {**tiny_fields("gpt2"), "vocab_size": 256, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    torch.manual_seed(7)
    AutoModelForCausalLM.from_config(AutoConfig.for_model(**fields)).save_pretrained(tmp_path / "model")
    (tmp_path / "text.txt").write_text(TEXT)
    job = pretrained_job(tmp_path, tmp_path, num_steps=2, model=fields, adapter="lora", lora_targets="all-linear")
    worlds[2].run(run, replace(job, optimizer=replace(job.optimizer, learning_rate=1e-2)))
    (adapter,) = (tmp_path / "adapter").glob("*.safetensors")
    factors = {name.removeprefix("base_model.model."): tensor for name, tensor in load_file(adapter).items()}
    names = {name.removesuffix(".lora_A.weight") for name in factors if name.endswith(".lora_A.weight")}
    merged = replace(
        job.checkpoint, export_folder=str(tmp_path / "merged"), folder=str(tmp_path / "run2"), is_merged=True
    )
    worlds[2].run(run, replace(job, checkpoint=merged, optimizer=replace(job.optimizer, learning_rate=1e-2)))
    adapted = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(tmp_path / "model"), tmp_path / "adapter")
    inputs, _ = next_tokens()
    with torch.no_grad():
        expected = adapted.eval()(input_ids=inputs).logits
        found = AutoModelForCausalLM.from_pretrained(tmp_path / "merged").eval()(input_ids=inputs).logits
        plain = AutoModelForCausalLM.from_pretrained(tmp_path / "model").eval()(input_ids=inputs).logits
    assert {name.rpartition(".")[2] for name in names} == {"c_attn", "c_proj", "c_fc"}
    assert (found - expected).abs().max() < 1e-5
    assert (plain - expected).abs().max() > 1e-3


def test_a_merge_knows_transposed_matrices_and_names_without_the_base_model(tmp_path):
    """GPT-2 stores (in, out), and its checkpoint leaves out ``transformer.``; types and files stay the base's."""
    base_folder = tmp_path / "base"
    base_folder.mkdir()
    weights = {"h.0.attn.c_attn.weight": torch.ones(3, 3, dtype=torch.bfloat16), "h.0.ln.weight": torch.ones(3)}
    save_file(weights, base_folder / "model.safetensors")
    (base_folder / "config.json").write_text("{}", encoding="utf-8")
    first, second = torch.tensor([[1.0, 2.0, 0.0]]), torch.tensor([[1.0], [0.0], [4.0]])
    name = "transformer.h.0.attn.c_attn"
    factors = {f"{name}.lora_A.weight": first, f"{name}.lora_B.weight": second}
    export_merged(factors, base_folder, tmp_path / "out", scale_ratio=0.5, transposed={name})
    found = load_file(tmp_path / "out" / "model.safetensors")
    assert found["h.0.attn.c_attn.weight"].tolist() == [[1.5, 1.0, 3.0], [2.0, 1.0, 5.0], [1.0, 1.0, 1.0]]
    assert found["h.0.attn.c_attn.weight"].dtype == torch.bfloat16
    assert (tmp_path / "out" / "config.json").is_file()
    lost = {key.replace("c_attn", "c_none"): value for key, value in factors.items()}
    with pytest.raises(CheckpointError) as caught:
        export_merged(lost, base_folder, tmp_path / "none", scale_ratio=0.5)
    assert caught.value.code == "export-merge"
    assert not (tmp_path / "none").exists()


def test_the_config_for_peft_says_targets_and_scale(worlds, base, tmp_path):  # noqa: F811
    recipe = {**ROOTED, "lora_targets": "mlp.*"}
    worlds[2].run(run, pretrained_job(base, tmp_path, num_steps=2, **recipe))
    config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text(encoding="utf-8"))
    assert config["target_modules"] == ["down_proj", "gate_proj", "up_proj"]
    assert (config["r"], config["lora_alpha"], config["use_rslora"]) == (4, 12.0, True)


def test_a_name_that_another_matrix_has_too_is_written_with_its_path():
    block = nn.ModuleDict({part: nn.ModuleDict({"dense": nn.Linear(2, 2)}) for part in ("attn", "mlp")})
    adapted = block["attn"]["dense"]
    adapted.add_module("lora_A", Factor(2, 1))
    adapted.add_module("lora_B", Factor(1, 2))
    assert target_names((SimpleNamespace(blocks=lambda: [block]),)) == ("attn.dense",)
    del block["mlp"]
    assert target_names((SimpleNamespace(blocks=lambda: [block]),)) == ("dense",)


def plan_of(job):
    spec = read_model({**LLAMA, "hidden_act": "silu", "max_position_embeddings": 64, "tie_word_embeddings": False})
    return Plan(model=spec, cluster=read_cluster("2xh100-sxm"), recipe=job.recipe, layout=job.layout)


@pytest.mark.parametrize("layout", [{"dp_shard": 2}, {"tp": 2}], ids=str)
def test_states_of_chosen_targets_are_as_large_as_the_plan_says(worlds, layout):
    job = make_job(layout=layout, num_steps=2, **CHOSEN)
    held = worlds[2].run(hold, job)[0]
    worst = predict(plan_of(job)).memory.worst
    assert held.parameter_bytes == worst.component_bytes("parameters")
    assert held.optimizer_bytes - 4 * len(held.trained_names) == worst.component_bytes("optimizer")
    assert len(held.trained_names) == 4 * 4 * 2


def test_a_list_of_every_matrix_is_predicted_as_all_linear():
    def measured(targets):
        found = predict(plan_of(make_job(layout={"dp_shard": 2}, **{**CHOSEN, "lora_targets": targets})))
        return found.memory, found.time.step_s

    assert measured("*_proj") == measured("all-linear")
    assert measured("attention") == measured("q_proj,k_proj,v_proj,o_proj")
    assert measured("q_proj") != measured("attention")


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        ("atention", "lora_targets=atention names no matrix of llama"),
        ("q_proj,x_proj", "lora_targets=q_proj,x_proj: x_proj fits no matrix of llama"),
    ],
)
def test_targets_that_fit_nothing_are_refused(targets, message):
    with pytest.raises(RecipeError, match="matrix of llama") as caught:
        require_valid(plan_of(make_job(layout={"dp_shard": 2}, **{**CHOSEN, "lora_targets": targets})))
    assert message in caught.value.message
    assert caught.value.code == "recipe-lora-targets"


def test_adapters_do_not_go_on_under_another_scale(worlds, base, tmp_path):  # noqa: F811
    worlds[2].run(run, pretrained_job(base, tmp_path / "first", num_steps=2, **CHOSEN))
    source = str(tmp_path / "first" / "run")
    job = pretrained_job(base, tmp_path / "more", num_steps=4, resume_from=source, **CHOSEN)
    require_continuable(job)
    require_continuable(replace(job, recipe=replace(job.recipe, lora_alpha=6.0, use_rslora=True)))
    with pytest.raises(CheckpointError, match="multiplied with 3, and this run's with 2") as caught:
        require_continuable(replace(job, recipe=replace(job.recipe, lora_alpha=8.0)))
    assert caught.value.fix == "resume with --lora-alpha 12"

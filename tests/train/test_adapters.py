"""LoRA and QLoRA: adapters learn the same under every layout, cost what the plan says, and peft loads them."""

import json
from dataclasses import replace

import pytest
import torch
from peft import PeftModel
from torch.distributed.checkpoint.filesystem import FileSystemReader
from transformers import AutoConfig, AutoModelForCausalLM

from shardwise.catalog import read_cluster
from shardwise.families import read_model
from shardwise.plan import Plan
from shardwise.predict import predict
from shardwise.train.job import CheckpointSpec, DataSpec
from shardwise.train.pretrained.files import weights_digest
from train.adapter_member import hold
from train.curves import assert_same
from train.models import GEMMA, LLAMA, MIXTRAL, make_job
from train.representatives import representatives
from train.test_collectives import counted, predicted
from train.tiny_families import tiny_fields
from train.world_member import count, run

RELATIVE = 1e-5
LORA = {"adapter": "lora", "lora_rank": 4, "lora_targets": "all-linear"}
QLORA = {**LORA, "adapter": "qlora"}
GEMMA3 = {**tiny_fields("gemma3_text"), "vocab_size": 256, "hidden_size": 128, "intermediate_size": 256}
LAYOUTS = {
    "fsdp": (2, {"dp_shard": 2}, ()),
    "ddp": (2, {"dp_replicate": 2, "zero_stage": 0}, ()),
    "tp": (2, {"tp": 2}, ()),
    "tp, sequence parallel": (2, {"tp": 2, "sequence_parallel": True}, ()),
    "pp": (2, {"pp": 2}, (2, 2)),
    "zero bubble": (2, {"pp": 2, "schedule": "zb-h1"}, (2, 2)),
    "fsdp x tp": (4, {"dp_shard": 2, "tp": 2, "sequence_parallel": True}, ()),
    "hsdp": (4, {"dp_replicate": 2, "dp_shard": 2}, ()),
}


@pytest.fixture(scope="module")
def lora_alone(curve):
    return curve(1, num_steps=4, **LORA)


@pytest.mark.parametrize("name", representatives(LAYOUTS, ("fsdp", "ddp", "tp", "pp", "zero bubble")))
def test_adapters_learn_under_a_layout_what_they_learn_in_one_process(worlds, lora_alone, name):
    size, layout, chunk_layers = LAYOUTS[name]
    job = make_job(layout=layout, chunk_layers=chunk_layers, num_steps=4, **LORA)
    for result in worlds[size].run(run, job):
        assert result.losses == pytest.approx(lora_alone.losses, rel=RELATIVE)
        assert result.norms == pytest.approx(lora_alone.norms, rel=10 * RELATIVE)


def test_adapters_lower_the_loss_but_start_where_the_base_model_is(lora_alone, alone):
    assert lora_alone.losses[0] == pytest.approx(alone["llama"].losses[0], rel=RELATIVE)
    assert lora_alone.losses[-1] < lora_alone.losses[0]
    assert lora_alone.losses[-1] != pytest.approx(alone["llama"].losses[3], rel=RELATIVE)


@pytest.mark.parametrize("layout", [{"dp_shard": 2}, {"dp_replicate": 2, "zero_stage": 0}], ids=str)
def test_four_bit_weights_give_the_same_under_a_layout(worlds, curve, layout):
    expected = curve(1, num_steps=4, **QLORA)
    for result in worlds[2].run(run, make_job(layout=layout, num_steps=4, **QLORA)):
        assert result.losses == pytest.approx(expected.losses, rel=RELATIVE)
        assert result.norms == pytest.approx(expected.norms, rel=10 * RELATIVE)


WIDE = {**LLAMA, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2}
"""Rows that two ranks divide into whole blocks of 64 weights."""


@pytest.mark.runs
@pytest.mark.parametrize(
    ("size", "layout"),
    [(2, {"tp": 2}), (4, {"dp_shard": 2, "tp": 2, "sequence_parallel": True})],
    ids=["tp", "fsdp x tp"],
)
@pytest.mark.parametrize("model", [WIDE, {**WIDE, "attention_bias": True}, {**GEMMA3, "head_dim": 32}], ids=str)
def test_four_bit_weights_are_the_same_where_their_inputs_are_divided(worlds, curve, model, size, layout):
    expected = curve(1, model=model, num_steps=10, **QLORA)
    assert_same(worlds[size].run(run, make_job(model=model, layout=layout, num_steps=10, **QLORA)), expected)


@pytest.mark.runs
def test_parts_of_rows_are_read_from_a_checkpoint_as_whole_rows_are(worlds, tmp_path):
    """The scale of a row is the whole row's, of which every rank reads a part."""
    torch.manual_seed(4)
    AutoModelForCausalLM.from_config(
        AutoConfig.for_model(**WIDE, tie_word_embeddings=False, max_position_embeddings=64)
    ).save_pretrained(tmp_path / "model")
    spec = CheckpointSpec(initial_weights=str(tmp_path / "model"))

    def losses(size, **layout):
        job = replace(make_job(model=WIDE, layout=layout, num_steps=3, **QLORA), checkpoint=spec)
        return worlds[size].run(run, job)

    assert_same(losses(4, dp_shard=2, tp=2, sequence_parallel=True), losses(1)[0])


@pytest.mark.parametrize("recipe", [LORA, QLORA], ids=["lora", "qlora"])
def test_low_precision_stays_near_fp32(worlds, curve, recipe):
    exact = curve(1, num_steps=4, **recipe)
    mixed = worlds[2].run(run, make_job(layout={"dp_shard": 2}, num_steps=4, precision="bf16-mixed", **recipe))[0]
    assert mixed.losses == pytest.approx(exact.losses, rel=2e-3)


@pytest.mark.parametrize(("recipe", "recompute"), [(LORA, "selective"), (QLORA, "full")], ids=["lora", "qlora"])
def test_recomputing_blocks_changes_no_number(worlds, recipe, recompute):
    dropped = {**recipe, "lora_dropout_fraction": 0.1}
    kept = worlds[2].run(run, make_job(layout={"dp_shard": 2}, num_steps=2, **dropped))[0]
    again = worlds[2].run(run, make_job(layout={"dp_shard": 2}, num_steps=2, recompute=recompute, **dropped))[0]
    assert again.losses == pytest.approx(kept.losses, rel=RELATIVE)
    assert again.norms == pytest.approx(kept.norms, rel=10 * RELATIVE)


@pytest.mark.parametrize("recipe", [pytest.param(LORA, marks=pytest.mark.runs), QLORA], ids=["lora", "qlora"])
def test_models_of_transformers_are_adapted_too(worlds, recipe):
    expected = worlds[1].run(run, make_job(model=GEMMA, num_steps=3, **recipe))[0]
    for result in worlds[2].run(run, make_job(model=GEMMA, layout={"dp_shard": 2}, num_steps=3, **recipe)):
        assert result.losses == pytest.approx(expected.losses, rel=RELATIVE)
        assert result.norms == pytest.approx(expected.norms, rel=10 * RELATIVE)


def test_attention_of_a_model_with_experts_is_adapted_over_expert_ranks(worlds):
    recipe = {**LORA, "lora_targets": "attention"}
    expected = worlds[1].run(run, make_job(model=MIXTRAL, num_steps=3, **recipe))[0]
    layout = {"dp_shard": 2, "ep": 2}
    for result in worlds[2].run(run, make_job(model=MIXTRAL, layout=layout, num_steps=3, **recipe)):
        assert result.losses == pytest.approx(expected.losses, rel=RELATIVE)


ADAPTER_PARAMS = 4 * 4 * ((64 + 64) * 2 + (64 + 32) * 2 + (64 + 128) * 3)
"""Four blocks, rank 4: q and o 64 to 64, k and v 64 to 32, gate, up and down between 64 and 128."""


def test_only_adapters_have_gradients_and_optimizer_states(worlds):
    held = worlds[2].run(hold, make_job(layout={"dp_shard": 2}, num_steps=2, **LORA))[0]
    assert len(held.trained_names) == 4 * 7 * 2
    assert all(name.endswith((".lora_A.weight", ".lora_B.weight")) for name in held.trained_names)
    assert held.num_frozen_gradients == 0
    step_counts_bytes = 4 * len(held.trained_names)
    assert held.optimizer_bytes == 2 * 4 * ADAPTER_PARAMS // 2 + step_counts_bytes


@pytest.mark.parametrize("layout", [{"dp_shard": 2}, {"dp_replicate": 2, "zero_stage": 0}, {"tp": 2}], ids=str)
def test_states_are_as_large_as_the_plan_says(worlds, layout):
    job = make_job(layout=layout, num_steps=2, **LORA)
    held = worlds[2].run(hold, job)[0]
    spec = read_model({**LLAMA, "hidden_act": "silu", "max_position_embeddings": 64, "tie_word_embeddings": False})
    plan = Plan(model=spec, cluster=read_cluster("2xh100-sxm"), recipe=job.recipe, layout=job.layout)
    worst = predict(plan).memory.worst
    assert held.parameter_bytes == worst.component_bytes("parameters")
    assert held.optimizer_bytes - 4 * len(held.trained_names) == worst.component_bytes("optimizer")


COUNTED = {
    "fsdp": (2, {"dp_shard": 2}, 4),
    "ddp": (2, {"dp_replicate": 2, "zero_stage": 0}, 4),
    "hsdp": (4, {"dp_replicate": 2, "dp_shard": 2}, 1),
    "tp": (2, {"tp": 2}, 2),
    "tp, sequence parallel": (2, {"tp": 2, "sequence_parallel": True}, 2),
    "fsdp x tp": (4, {"dp_shard": 2, "tp": 2, "sequence_parallel": True}, 2),
}


@pytest.mark.parametrize("name", representatives(COUNTED, ("fsdp", "ddp", "tp", "tp, sequence parallel")))
def test_frozen_weights_are_gathered_but_never_reduced(worlds, name):
    size, layout, num_microbatches = COUNTED[name]
    copies = layout.get("dp_shard", 1) * layout.get("dp_replicate", 1)
    job = make_job(layout=layout, micro_batch_size=8 // copies // num_microbatches, **LORA)
    expected = predicted(job, LLAMA)[0]
    assert counted(worlds[size].run(count, job)[0]) == expected


TEXT = "The plan names the layout, the layout names the ranks, and the ranks hold the weights.\n" * 40


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A Hugging Face checkpoint and a text to read."""
    folder = tmp_path_factory.mktemp("base")
    torch.manual_seed(6)
    fields = {key: value for key, value in LLAMA.items() if key != "model_type"}
    AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", **fields)).save_pretrained(folder / "model")
    (folder / "text.txt").write_text(TEXT)
    return folder


def pretrained_job(base, out, *, num_steps, resume_from=None, **recipe):
    spec = CheckpointSpec(
        initial_weights=str(base / "model"),
        folder=str(out / "run"),
        every_steps=2,
        resume_from=resume_from,
        export_folder=str(out / "adapter"),
    )
    data = DataSpec(source=str(base / "text.txt"), is_shuffled=False)
    job = make_job(layout={"dp_shard": 2}, num_steps=num_steps, **recipe)
    return replace(job, checkpoint=spec, data=data)


@pytest.mark.parametrize("implementation", ["shardwise", "transformers"])
def test_peft_loads_the_adapter_and_computes_the_loss_of_the_run(worlds, base, tmp_path, implementation):
    """The run is continued by a step whose loss is that of the saved adapter, on the tokens that come next."""
    job = replace(pretrained_job(base, tmp_path, num_steps=4, **LORA), implementation=implementation)
    worlds[2].run(run, job)
    spec = replace(job.checkpoint, resume_from=str(tmp_path / "run"), folder=None, export_folder=None)
    after = worlds[2].run(run, replace(job, num_steps=5, checkpoint=spec))[0]
    model = AutoModelForCausalLM.from_pretrained(base / "model")
    model = PeftModel.from_pretrained(model, tmp_path / "adapter")
    tokens = torch.tensor(list(TEXT.encode()))
    first = 4 * 8 * 32
    inputs, labels = tokens[first : first + 256].view(8, 32), tokens[first + 1 : first + 257].view(8, 32)
    assert loss_of(model, inputs, labels) == pytest.approx(after.losses[-1], rel=1e-4)
    with model.disable_adapter():
        assert loss_of(model, inputs, labels) > after.losses[-1] + 0.01


def loss_of(model, inputs, labels):
    with torch.no_grad():
        logits = model(input_ids=inputs).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()).item()


@pytest.mark.parametrize("recipe", [LORA, QLORA], ids=["lora", "qlora"])
def test_a_run_goes_on_from_a_checkpoint_that_holds_adapters_alone(worlds, base, tmp_path, recipe):
    job = pretrained_job(base, tmp_path / "whole", num_steps=4, **recipe)
    whole = worlds[2].run(run, replace(job, checkpoint=replace(job.checkpoint, num_kept=9)))[0]
    source = tmp_path / "whole" / "run" / "step-00000002"
    saved = FileSystemReader(source).read_metadata().state_dict_metadata
    assert sum(entry.size.numel() for key, entry in saved.items() if key.startswith("model.")) == ADAPTER_PARAMS
    job = pretrained_job(base, tmp_path / "rest", num_steps=4, resume_from=str(source), **recipe)
    assert worlds[2].run(run, job)[0].losses == whole.losses[2:]


def test_four_bit_weights_are_read_from_a_checkpoint_row_by_row(worlds, base, tmp_path):
    """Near the dense model's loss, but not it: 4 bits keep the third digit of this model's loss."""
    dense = worlds[2].run(run, pretrained_job(base, tmp_path / "dense", num_steps=1, **LORA))[0]
    packed = worlds[2].run(run, pretrained_job(base, tmp_path / "packed", num_steps=1, **QLORA))[0]
    assert packed.losses[0] == pytest.approx(dense.losses[0], rel=5e-3)
    assert packed.losses[0] != pytest.approx(dense.losses[0], rel=1e-6)


@pytest.mark.parametrize("recipe", [pytest.param(LORA, marks=pytest.mark.runs), QLORA], ids=["lora", "qlora"])
def test_an_exported_adapter_says_which_weights_it_fits(worlds, base, tmp_path, recipe):
    job = pretrained_job(base, tmp_path, num_steps=2, **recipe)
    known = replace(job.checkpoint, weights_digest=weights_digest(base / "model"))
    worlds[2].run(run, replace(job, checkpoint=known))
    config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text(encoding="utf-8"))
    card = (tmp_path / "adapter" / "README.md").read_text(encoding="utf-8")
    assert config["base_model_name_or_path"] == str(base / "model")
    assert f"They fit the weights in `{base / 'model'}` (digest {known.weights_digest})" in card
    assert f"tokens: {base / 'text.txt'}" in card
    assert "random" not in card


@pytest.mark.parametrize("recipe", [LORA, pytest.param(QLORA, marks=pytest.mark.runs)], ids=["lora", "qlora"])
def test_an_adapter_of_random_weights_says_so_and_peft_still_loads_it(worlds, base, tmp_path, recipe):
    job = pretrained_job(base, tmp_path, num_steps=2, **recipe)
    spec = replace(job.checkpoint, initial_weights=None, accepts_random_weights=True)
    worlds[2].run(run, replace(job, checkpoint=spec, data=DataSpec()))
    card = (tmp_path / "adapter" / "README.md").read_text(encoding="utf-8")
    assert "trained beside random weights and fit no model that was trained" in card
    assert "- tokens: synthetic" in card
    assert "base_model" not in card
    config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text(encoding="utf-8"))
    assert config["base_model_name_or_path"] is None
    PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base / "model"), tmp_path / "adapter")

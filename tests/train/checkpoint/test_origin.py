"""What a checkpoint says of the run that made it, and which jobs may go on from it: no tensor is read."""

import json
from dataclasses import replace

import pytest

from shardwise.errors import CheckpointError
from shardwise.layout import Layout
from shardwise.recipe import Recipe
from shardwise.step.native_engine import OWN_DECODER_TYPES
from shardwise.train.checkpoint.folder import CheckpointFolder, find_checkpoint
from shardwise.train.checkpoint.origin import FACTS, origin_facts, origin_of, require_continuable
from shardwise.train.decoder.config import completed
from shardwise.train.job import CheckpointSpec, Job, write_job
from train.models import LLAMA

STATE = {"position": 12, "seed": 0, "is_shuffled": True, "num_samples": 7, "fingerprint": "f"}


def whole_json(fields) -> str:
    """The config as jobs hold it: of our decoder's families with every field."""
    return json.dumps(completed(fields) if fields["model_type"] in OWN_DECODER_TYPES else fields)


def made_job(folder, *, recipe=None, **fields) -> Job:
    return Job(
        **{
            "layout": Layout(),
            "recipe": Recipe(seq_len=16, **(recipe or {})),
            "num_microbatches": 1,
            "model_config_json": whole_json(LLAMA),
            "run_folder": str(folder),
            "num_steps": 3,
            "checkpoint": CheckpointSpec(folder=str(folder / "checkpoints")),
            **fields,
        }
    )


def save(folder, facts):
    states = CheckpointFolder(folder)
    unfinished = states.begin(2)
    (unfinished / ".metadata").write_bytes(b"made up")
    (unfinished / FACTS).write_text(json.dumps({"step": 2, **facts}), encoding="utf-8")
    return states.publish(2)


def going_on(job, folder, **changes) -> Job:
    return replace(job, checkpoint=CheckpointSpec(resume_from=str(folder)), **changes)


def test_a_checkpoint_says_what_made_it_wherever_it_lies(tmp_path):
    job = made_job(tmp_path / "run")
    origin = origin_of(save(tmp_path / "elsewhere", origin_facts(job, STATE)))
    assert origin.job == job
    assert origin.data == {"seed": 0, "is_shuffled": True, "num_samples": 7, "fingerprint": "f"}


def test_a_checkpoint_that_says_nothing_is_known_by_the_job_beside_it(tmp_path):
    job = made_job(tmp_path)
    checkpoint = save(tmp_path / "checkpoints", {})
    write_job(job)
    origin = origin_of(checkpoint)
    assert (origin.job, origin.data) == (job, None)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"schema": "another"}', None])
def test_nothing_is_known_of_a_checkpoint_beside_another_job(tmp_path, text):
    checkpoint = save(tmp_path / "checkpoints", {})
    write_job(made_job(tmp_path, checkpoint=CheckpointSpec(folder=str(tmp_path / "other"))))
    if text is not None:
        (tmp_path / "job.json").write_text(text, encoding="utf-8")
    assert origin_of(checkpoint) is None
    require_continuable(going_on(made_job(tmp_path, recipe={"optimizer": "lion"}), tmp_path))


LORA = {"adapter": "lora", "lora_rank": 4}


@pytest.mark.parametrize(
    ("before", "now", "says", "fix"),
    [
        (
            {},
            {"optimizer": "sgd"},
            "holds the states of adamw, and this run's optimizer is sgd",
            "resume with --optimizer adamw, the one it was made with",
        ),
        (
            {"optimizer": "adamw-8bit"},
            {"optimizer": "muon"},
            "holds the states of adamw-8bit, and this run's optimizer is muon",
            "resume with --optimizer adamw-8bit, the one it was made with",
        ),
        (
            {},
            LORA,
            "holds all weights (adapter none), and this run trains with adapter lora",
            "resume with --adapter none, or start from exported weights with --weights",
        ),
        (
            LORA,
            {},
            "holds adapters and no weights beneath them (adapter lora), and this run trains with adapter none",
            "resume with --adapter lora, or start from exported weights with --weights",
        ),
        (
            LORA,
            {**LORA, "adapter": "qlora"},
            "holds adapters and no weights beneath them (adapter lora), and this run trains with adapter qlora",
            "resume with --adapter lora, or start from exported weights with --weights",
        ),
        (
            LORA,
            {**LORA, "lora_rank": 8},
            "holds adapters with lora_rank 4, and this run has 8",
            "resume with --lora-rank 4",
        ),
    ],
)
def test_a_recipe_that_trains_other_tensors_is_refused(tmp_path, before, now, says, fix):
    save(tmp_path, origin_facts(made_job(tmp_path, recipe=before), STATE))
    with pytest.raises(CheckpointError) as refused:
        require_continuable(going_on(made_job(tmp_path, recipe=now), tmp_path))
    assert refused.value.code == "checkpoint-mismatch"
    assert refused.value.message == f"{find_checkpoint(tmp_path).path} {says}"
    assert refused.value.fix == fix


NEOX = {"model_type": "gpt_neox", "hidden_size": 16, "num_hidden_layers": 2, "vocab_size": 97}


@pytest.mark.parametrize(
    ("before", "now", "says", "fields"),
    [
        (LLAMA, {**LLAMA, "vocab_size": 259}, "has model.embed_tokens.weight as (", '"vocab_size": 256'),
        (LLAMA, {**LLAMA, "num_hidden_layers": 9}, "which this run needs", '"num_hidden_layers": 4'),
        (
            LLAMA,
            {**LLAMA, "num_key_value_heads": 8, "head_dim": 16},
            "has model.layers.0.self_attn.q_proj.weight as (64, 64), and this run as (128, 64)",
            '"num_key_value_heads": 4, "head_dim": 8',
        ),
        (
            LLAMA,
            {**LLAMA, "attention_bias": True},
            "has no tensor model.layers.0.self_attn.q_proj.bias",
            '"attention_bias": false',
        ),
        (LLAMA, {**NEOX}, "has model_type llama, and this run gpt_neox", '"model_type": "llama"'),
        (NEOX, {**NEOX, "hidden_size": 32}, "has hidden_size 16, and this run 32", '"hidden_size": 16'),
    ],
)
def test_another_model_is_refused_with_the_fields_to_write(tmp_path, before, now, says, fields):
    save(tmp_path, origin_facts(made_job(tmp_path, model_config_json=whole_json(before)), STATE))
    with pytest.raises(CheckpointError) as refused:
        require_continuable(going_on(made_job(tmp_path, model_config_json=whole_json(now)), tmp_path))
    assert refused.value.code == "checkpoint-mismatch"
    assert says in refused.value.message
    assert refused.value.fix == f"write {fields} in the model's config.json, as the checkpoint was made"


def test_a_job_that_left_sizes_to_an_older_decoder_is_not_judged(tmp_path):
    """Qwen3's head size of 128 was not what our decoder took where a config omitted it."""
    before, now = {**LLAMA, "model_type": "qwen3"}, {**LLAMA, "model_type": "qwen3", "head_dim": 8}
    save(tmp_path, origin_facts(made_job(tmp_path, model_config_json=json.dumps(before)), STATE))
    require_continuable(going_on(made_job(tmp_path, model_config_json=whole_json(now)), tmp_path))


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ({}, {}),
        ({}, {"optimizer": "adamw-8bit"}),
        ({"optimizer": "adamw-8bit"}, {}),
        ({}, {"precision": "fp32", "micro_batch_size": 2, "recompute": "full"}),
    ],
)
def test_what_leaves_the_tensors_alone_may_change(tmp_path, before, now):
    save(tmp_path, origin_facts(made_job(tmp_path, recipe=before), STATE))
    require_continuable(going_on(made_job(tmp_path, recipe=now), tmp_path, layout=Layout(tp=2), num_steps=9))

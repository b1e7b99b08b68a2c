"""Validation sees the same loss under every layout, changes nothing of the training, and ends it where it shall."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from shardwise.train.checkpoint.folder import CheckpointFolder
from shardwise.train.job import CheckpointSpec, OptimizerSpec, ValidationSpec
from shardwise.train.validation import Validation, ValidationState
from train.models import MIXTRAL, make_job
from train.representatives import representatives
from train.tuning import BYTES, looks_twice, watched, write_rows

LAYOUTS = {
    "fsdp": (2, {"dp_shard": 2}, ()),
    "zero 2": (2, {"dp_shard": 2, "zero_stage": 2}, ()),
    "fsdp, vocabulary spread": (2, {"dp_shard": 2, "spread_vocabulary": True}, ()),
    "ddp": (2, {"dp_replicate": 2, "zero_stage": 0}, ()),
    "tp": (2, {"tp": 2, "sequence_parallel": True}, ()),
    "cp": (2, {"cp": 2}, ()),
    "1f1b": (2, {"pp": 2}, (1, 1)),
    "zero bubble": (2, {"pp": 2, "schedule": "zb-h1"}, (1, 1)),
    "tp x fsdp": (4, {"dp_shard": 2, "tp": 2, "sequence_parallel": True}, ()),
}
KEPT = ("fsdp", "fsdp, vocabulary spread", "tp", "1f1b")
DEEP = {**BYTES, "num_hidden_layers": 4}
DEEP_LAYOUTS = {
    "interleaved": (2, {"pp": 2, "vpp": 2, "schedule": "interleaved"}, (1, 1, 1, 1)),
    "zbv": (2, {"pp": 2, "schedule": "zbv"}, (1, 1, 1, 1)),
}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Rows to learn from, and 21 sequences of others, which fill no whole number of steps."""
    folder = tmp_path_factory.mktemp("data")
    spec = write_rows(folder / "rows.jsonl", num_rows=150)
    other = replace(write_rows(folder / "others.jsonl", num_rows=45, seed=1), packing="documents")
    return spec, ValidationSpec(source=other.source, every_steps=2)


def job_of(data, *, model=BYTES, **choices):
    spec, validation = data
    return replace(make_job(model=model, **choices), data=spec, validation=validation)


@pytest.fixture(scope="module")
def seen_alone(worlds, data):
    return worlds[1].run(watched, job_of(data))[0]


@pytest.mark.parametrize("name", representatives(LAYOUTS, KEPT))
def test_a_layout_sees_the_validation_loss_of_one_process_and_trains_as_if_it_had_not_looked(
    worlds, seen_alone, data, name
):
    size, layout, chunk_layers = LAYOUTS[name]
    job = job_of(data, layout=layout, chunk_layers=chunk_layers)
    losses, seen, _ = worlds[size].run(watched, job)[0]
    blind, nothing, _ = worlds[size].run(watched, replace(job, validation=ValidationSpec()))[0]
    assert losses == blind
    assert not nothing
    assert seen == pytest.approx(seen_alone[1], rel=1e-6)
    assert len(seen) == 2
    assert seen[1] < seen[0]


@pytest.mark.parametrize("name", representatives(DEEP_LAYOUTS, ("zbv",)))
def test_pipelines_of_several_chunks_see_it_too(worlds, data, name):
    size, layout, chunk_layers = DEEP_LAYOUTS[name]
    job = job_of(data, model=DEEP, layout=layout, chunk_layers=chunk_layers)
    losses, seen, _ = worlds[size].run(watched, job)[0]
    alone, seen_by_one, _ = worlds[1].run(watched, job_of(data, model=DEEP))[0]
    assert losses == pytest.approx(alone, rel=1e-6)
    assert seen == pytest.approx(seen_by_one, rel=1e-6)


def test_ranks_with_other_experts_see_it_too(worlds, data):
    model = {**MIXTRAL, "vocab_size": 320, "num_hidden_layers": 2}
    _, seen, _ = worlds[2].run(watched, job_of(data, model=model, layout={"dp_shard": 2, "ep": 2}))[0]
    assert seen == pytest.approx(worlds[1].run(watched, job_of(data, model=model))[0][1], rel=1e-6)


def test_it_is_the_loss_per_learned_token_of_all_validation_data(worlds, tmp_path):
    """A run that learns nothing has in its first step, over all of the same rows, the loss that it validates with."""
    spec = replace(write_rows(tmp_path / "rows.jsonl", num_rows=8), packing="rows")
    job = job_of((spec, ValidationSpec(source=spec.source, every_steps=1)), num_steps=2)
    losses, seen, _ = worlds[1].run(watched, replace(job, optimizer=OptimizerSpec(learning_rate=0.0)))[0]
    assert seen == pytest.approx(losses, rel=1e-6)


def test_dropout_is_off(worlds, data, tmp_path):
    model = {
        "model_type": "gpt2",
        **{"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "vocab_size": 320},
        **{"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4},
        **{"embd_pdrop": 0.3, "resid_pdrop": 0.3, "attn_pdrop": 0.0},
    }
    job = replace(job_of(data, model=model, num_steps=2), optimizer=OptimizerSpec(learning_rate=0.0))
    job = replace(job, validation=replace(job.validation, every_steps=1), data=replace(job.data, packing="rows"))
    losses, seen, _ = worlds[1].run(watched, job)[0]
    assert seen[0] == seen[1]
    assert losses[0] != losses[1]


def test_dropout_before_adapters_is_off(worlds, data):
    recipe = {"adapter": "lora", "lora_targets": "all-linear", "lora_dropout_fraction": 0.5}
    job = replace(job_of(data, num_steps=2, **recipe), optimizer=OptimizerSpec(learning_rate=0.1))
    first, second = worlds[1].run(looks_twice, job)[0]
    assert first == second


def test_a_part_of_the_data_can_be_held_out(worlds, data):
    spec, validation = data
    held_out = (replace(spec, held_out_fraction=0.1), replace(validation, source=None))
    losses, seen, _ = worlds[1].run(watched, job_of(held_out))[0]
    assert len(seen) == 2
    assert losses != worlds[1].run(watched, job_of(data))[0][0]


def saving(job, folder, **choices):
    spec = CheckpointSpec(folder=str(folder), every_steps=2, num_kept=1, **choices)
    return replace(job, checkpoint=spec, run_folder=str(folder.parent))


def overfitting(tmp_path, *, num_steps):
    """Few rows with a high learning rate, judged by others: the validation loss soon rises."""
    spec = replace(write_rows(tmp_path / "few.jsonl", num_rows=8), packing="rows")
    others = write_rows(tmp_path / "others.jsonl", num_rows=16, seed=5)
    validation = ValidationSpec(source=others.source, every_steps=2, num_patience=3)
    job = job_of((spec, validation), num_steps=num_steps)
    return replace(job, optimizer=OptimizerSpec(learning_rate=1e-2))


def test_a_run_ends_when_its_patience_is_over_and_keeps_the_best_checkpoint(worlds, tmp_path):
    job = saving(overfitting(tmp_path, num_steps=100), tmp_path / "checkpoints")
    losses, seen, _ = worlds[1].run(watched, job)[0]
    best = 2 * (1 + seen.index(min(seen)))
    assert len(losses) == best + 6 < 100
    folder = CheckpointFolder(tmp_path / "checkpoints")
    assert folder.best().step == best
    assert [found.step for found in folder.complete()] == [best, best + 6]
    measured = json.loads((Path(job.run_folder) / "measurement.json").read_text(encoding="utf-8"))["validation"]
    assert measured["ended_early"]
    assert measured["best_step"] == best
    assert measured["best_perplexity"] == pytest.approx(math.exp(min(seen)))


def test_a_resumed_run_ends_where_one_that_was_not_interrupted_ends(worlds, tmp_path):
    job = overfitting(tmp_path, num_steps=100)
    whole, seen, _ = worlds[1].run(watched, job)[0]
    (tmp_path / "run").mkdir()
    stop = len(whole) - 2
    first = saving(replace(job, num_steps=stop), tmp_path / "run" / "checkpoints")
    before = worlds[1].run(watched, first)[0]
    resumed = saving(job, tmp_path / "run" / "checkpoints", resume_from=first.run_folder)
    after = worlds[1].run(watched, resumed)[0]
    assert before[0] + after[0] == whole
    assert before[1] + after[1] == seen
    assert CheckpointFolder(tmp_path / "run" / "checkpoints").best().step == len(whole) - 6


def test_only_a_lower_loss_is_better():
    state = ValidationState()
    for step, loss in ((1, 3.0), (2, 2.0), (3, 2.0), (4, math.nan), (5, 1.5), (6, 1.6)):
        state.take(Validation(step=step, loss=loss, num_tokens=7))
    assert (state.first_loss, state.last_loss, state.best_loss, state.best_step) == (3.0, 1.6, 1.5, 5)
    assert state.num_without_better == 1
    other = ValidationState()
    other.load_state_dict(state.state_dict())
    assert other == state


GENERATING = {
    "alone": (1, {}),
    "fsdp": (2, {"dp_shard": 2}),
    "fsdp, vocabulary spread": (2, {"dp_shard": 2, "spread_vocabulary": True}),
    "ddp": (2, {"dp_replicate": 2, "zero_stage": 0}),
    "tp": (2, {"tp": 2, "sequence_parallel": True}),
}


@pytest.mark.parametrize("name", representatives(GENERATING, ("alone", "fsdp, vocabulary spread")))
def test_a_model_writes_what_it_learned_by_heart_under_every_layout_that_can(worlds, tmp_path, name):
    spec = replace(write_rows(tmp_path / "rows.jsonl", num_rows=8), packing="rows")
    size, layout = GENERATING[name]
    validation = ValidationSpec(source=spec.source, every_steps=80, prompts=spec.source, max_new_tokens=9)
    job = job_of((spec, validation), layout=layout, num_steps=80, model={**BYTES, "tie_word_embeddings": size == 1})
    job = replace(job, optimizer=OptimizerSpec(learning_rate=1e-2))
    _, _, written = worlds[size].run(watched, job)[0]
    rows = [json.loads(line) for line in Path(spec.source).read_text(encoding="utf-8").splitlines()]
    assert written == [row["completion"] for row in rows]


def test_a_model_of_transformers_writes_too(worlds, tmp_path):
    spec = replace(write_rows(tmp_path / "rows.jsonl", num_rows=4), packing="rows")
    validation = ValidationSpec(source=spec.source, every_steps=50, prompts=spec.source, max_new_tokens=9)
    job = job_of((spec, validation), layout={"dp_shard": 2}, num_steps=50, implementation="transformers")
    job = replace(job, optimizer=OptimizerSpec(learning_rate=1e-2))
    rows = [json.loads(line) for line in Path(spec.source).read_text(encoding="utf-8").splitlines()]
    assert worlds[2].run(watched, job)[0][2] == [row["completion"] for row in rows]

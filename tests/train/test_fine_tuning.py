"""Rows with prompts: their completions are learned and nothing else, and alike under every layout."""

from dataclasses import replace

import pytest

from shardwise.train.job import OptimizerSpec
from train.curves import assert_same
from train.models import make_job
from train.representatives import representatives
from train.tuning import BYTES, losses_after, write_rows
from train.world_member import run

NUM_STEPS = 10
LAYOUTS = {
    "fsdp": (2, {"dp_shard": 2}, ()),
    "fsdp, vocabulary spread": (2, {"dp_shard": 2, "spread_vocabulary": True}, ()),
    "ddp": (2, {"dp_replicate": 2, "zero_stage": 0}, ()),
    "tp": (2, {"tp": 2, "sequence_parallel": True}, ()),
    "cp": (2, {"cp": 2}, ()),
    "pp": (2, {"pp": 2}, (1, 1)),
    "tp x fsdp": (4, {"dp_shard": 2, "tp": 2, "sequence_parallel": True}, ()),
}


@pytest.fixture(scope="module")
def spec(tmp_path_factory):
    return write_rows(tmp_path_factory.mktemp("data") / "rows.jsonl", num_rows=150)


@pytest.fixture(scope="module")
def tuned_alone(worlds, spec):
    return worlds[1].run(run, replace(make_job(model=BYTES, num_steps=NUM_STEPS), data=spec))[0]


@pytest.mark.parametrize("name", representatives(LAYOUTS, ("fsdp", "cp")))
def test_masked_prompts_give_the_losses_of_one_process_under_every_layout(worlds, tuned_alone, spec, name):
    """Sequences have from a few learned tokens to many, so that a mean of the ranks' means would be another number."""
    size, layout, chunk_layers = LAYOUTS[name]
    job = make_job(model=BYTES, layout=layout, chunk_layers=chunk_layers, num_steps=NUM_STEPS)
    assert_same(worlds[size].run(run, replace(job, data=spec)), tuned_alone)


def test_accumulation_and_pieces_of_the_loss_change_nothing(worlds, tuned_alone, spec):
    job = replace(make_job(model=BYTES, num_steps=NUM_STEPS, micro_batch_size=1, loss_chunks=3), data=spec)
    assert_same(worlds[1].run(run, job), tuned_alone)


@pytest.mark.parametrize("loss_on", ["completions", "all"])
def test_completions_are_learned_by_heart_and_prompts_are_not_unless_all_is_learned(worlds, tmp_path, loss_on):
    """26 letters that nothing foretells cost 3.3 a token; prompts that are learned by heart cost little."""
    data = replace(write_rows(tmp_path / "rows.jsonl", num_rows=8), packing="rows", loss_on=loss_on)
    job = replace(make_job(model=BYTES, num_steps=80), data=data, optimizer=OptimizerSpec(learning_rate=1e-2))
    completions, prompts = worlds[1].run(losses_after, job)[0]
    assert completions < 0.05
    assert (prompts > 3) == (loss_on == "completions")
    assert prompts > 3 or prompts < 1

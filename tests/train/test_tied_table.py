"""One matrix for input and output stays one under every layout, and in the checkpoints that come of it."""

from dataclasses import replace

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from shardwise.train.job import CheckpointSpec
from train.collective_counter import Counted
from train.models import LLAMA, make_job
from train.representatives import representatives
from train.world_member import count, run

TIED = {**LLAMA, "tie_word_embeddings": True}
LAYOUTS = {
    "fsdp": (2, {"dp_shard": 2}),
    "ddp": (2, {"dp_replicate": 2, "zero_stage": 0}),
    "tp": (2, {"tp": 2}),
    "fsdp x tp": (4, {"dp_shard": 2, "tp": 2, "sequence_parallel": True}),
    "pp": (2, {"pp": 2}),
    "interleaved": (2, {"pp": 2, "vpp": 2, "schedule": "interleaved"}),
    "fsdp x pp": (4, {"dp_shard": 2, "pp": 2}),
    "pp 4": (4, {"pp": 4}),
}


def chunks_of(layout):
    """Blocks of each chunk: four in all."""
    num_chunks = layout.get("pp", 1) * layout.get("vpp", 1)
    return (4 // num_chunks,) * num_chunks if num_chunks > 1 else ()


@pytest.mark.parametrize("name", representatives(LAYOUTS, ("fsdp", "ddp", "tp", "pp", "interleaved")))
def test_a_tied_table_learns_what_it_learns_in_one_process(worlds, curve, name):
    size, layout = LAYOUTS[name]
    alone = curve(1, model=TIED, num_steps=4)
    job = make_job(model=TIED, num_steps=4, layout=layout, chunk_layers=chunks_of(layout))
    for result in worlds[size].run(run, job):
        assert result.losses == pytest.approx(alone.losses, rel=1e-5)
        assert result.norms == pytest.approx(alone.norms, rel=1e-4)


@pytest.mark.parametrize("name", ["fsdp", "tp", "pp"])
def test_a_tied_checkpoint_is_read_and_written_as_one(worlds, tmp_path, name):
    size, layout = LAYOUTS[name]
    torch.manual_seed(6)
    fields = {key: value for key, value in TIED.items() if key != "model_type"}
    AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", **fields)).save_pretrained(tmp_path / "begin")
    spec = CheckpointSpec(
        initial_weights=str(tmp_path / "begin"), folder=str(tmp_path / "run"), export_folder=str(tmp_path / "end")
    )
    job = make_job(model=TIED, num_steps=1, layout=layout, chunk_layers=chunks_of(layout))
    worlds[size].run(run, replace(job, checkpoint=spec))
    model, report = AutoModelForCausalLM.from_pretrained(tmp_path / "end", output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    assert model.lm_head.weight is model.model.embed_tokens.weight


def test_the_two_ends_sum_their_gradients_once_a_step(worlds):
    """256 rows of 64 fp32 numbers, as the inventory says."""
    job = make_job(model=TIED, layout={"pp": 2}, chunk_layers=(2, 2))
    calls = dict(worlds[2].run(count, job)[0])
    assert calls[Counted(kind="all_reduce", group_size=2, num_bytes=256 * 64 * 4)] == 1

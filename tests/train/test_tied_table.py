"""One matrix for input and output stays one under every layout, and in the checkpoints that come of it."""

from dataclasses import replace

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from shardwise.errors import PlanError
from shardwise.launch.request import require_native
from shardwise.plan_file import read_plan
from shardwise.train.job import CheckpointSpec
from train.models import LLAMA, make_job
from train.world_member import run

TIED = {**LLAMA, "tie_word_embeddings": True}
LAYOUTS = {
    "fsdp": (2, {"dp_shard": 2}),
    "ddp": (2, {"dp_replicate": 2, "zero_stage": 0}),
    "tp": (2, {"tp": 2}),
    "fsdp x tp": (4, {"dp_shard": 2, "tp": 2, "sequence_parallel": True}),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_tied_table_learns_what_it_learns_in_one_process(worlds, name):
    size, layout = LAYOUTS[name]
    alone = worlds[1].run(run, make_job(model=TIED, num_steps=4))[0].losses
    losses = worlds[size].run(run, make_job(model=TIED, num_steps=4, layout=layout))[0].losses
    assert losses == pytest.approx(alone, rel=1e-5)


@pytest.mark.parametrize("name", ["fsdp", "tp"])
def test_a_tied_checkpoint_is_read_and_written_as_one(worlds, tmp_path, name):
    size, layout = LAYOUTS[name]
    torch.manual_seed(6)
    fields = {key: value for key, value in TIED.items() if key != "model_type"}
    AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", **fields)).save_pretrained(tmp_path / "begin")
    spec = CheckpointSpec(
        initial_weights=str(tmp_path / "begin"), folder=str(tmp_path / "run"), export_folder=str(tmp_path / "end")
    )
    worlds[size].run(run, replace(make_job(model=TIED, num_steps=1, layout=layout), checkpoint=spec))
    model, report = AutoModelForCausalLM.from_pretrained(tmp_path / "end", output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    assert model.lm_head.weight is model.model.embed_tokens.weight


def test_a_pipeline_that_would_take_the_table_apart_is_refused():
    plan = read_plan(
        {
            "model": "llama-3.2-1b",
            "cluster": {"gpu": "h100-sxm", "gpus_per_node": 2, "num_nodes": 1},
            "recipe": {"seq_len": 2048, "global_batch_size": 8},
            "layout": {"pp": 2},
        }
    )
    with pytest.raises(PlanError, match="are one matrix, and pp=2 puts them on different ranks"):
        require_native(plan)

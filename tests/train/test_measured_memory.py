"""Two real processes hold what the plan was predicted to hold, and communicate what inventory and trace say."""

import json
from collections import Counter
from pathlib import Path

import pytest

from shardwise.launch.request import TrainRequest, make_job
from shardwise.plan_file import read_plan
from shardwise.predict.memory import predict_memory
from shardwise.step.collectives import stage_collectives
from shardwise.step.placement import pipeline_stages
from shardwise.step.stage_context import StageContext
from shardwise.train.tracing.step_record import traced_step
from train.world_member import count, run

TWO_CORES = str(Path(__file__).parents[2] / "examples" / "two-cores.toml")
MODEL = {
    "model_type": "llama",
    "hidden_size": 320,
    "intermediate_size": 896,
    "num_hidden_layers": 4,
    "num_attention_heads": 10,
    "num_key_value_heads": 10,
    "vocab_size": 4096,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}
LAYOUTS = {
    "ddp": {"dp_shard": 2, "zero_stage": 0},
    "fsdp": {"dp_shard": 2},
    "tp": {"dp_shard": 1, "tp": 2},
    "pp": {"dp_shard": 1, "pp": 2},
    "cp": {"dp_shard": 1, "cp": 2},
}
ALLOCATED_TOLERANCE = 0.03


def plan_of(layout):
    recipe = {"seq_len": 128, "micro_batch_size": 2, "global_batch_size": 8, "precision": "fp32", "compile": False}
    return read_plan({"model": MODEL, "cluster": TWO_CORES, "recipe": recipe, "layout": LAYOUTS[layout]})


@pytest.mark.parametrize("layout", LAYOUTS)
def test_allocated_tensors_of_a_run_are_predicted_within_three_per_cent(worlds, tmp_path, layout):
    plan = plan_of(layout)
    job = make_job(plan, TrainRequest(device="cpu", num_steps=3), prediction=None, run_folder=str(tmp_path))
    worlds[2].run(run, job)
    memory = json.loads((tmp_path / "measurement.json").read_text(encoding="utf-8"))["memory"]
    predicted = predict_memory(plan).worst.peak_allocated_bytes
    assert predicted == pytest.approx(memory["peak_allocated_bytes"], rel=ALLOCATED_TOLERANCE)


@pytest.mark.parametrize("layout", ["fsdp", "tp"])
def test_a_run_its_trace_and_its_inventory_communicate_the_same(worlds, tmp_path, layout):
    """Kind, ranks, bytes and number of every collective of one step, of rank 0 and its stage."""
    plan = plan_of(layout)
    job = make_job(plan, TrainRequest(device="cpu", num_steps=3), prediction=None, run_folder=str(tmp_path))
    ran, traced, predicted = Counter(), Counter(), Counter()
    for call, times in worlds[2].run(count, job)[0]:
        ran[call.kind, call.group_size, call.num_bytes] += times
    for call in traced_step(job).stages[0].collectives:
        traced[call.kind, call.group_size, call.num_bytes] += call.count
    stage = pipeline_stages(model=plan.model, layout=plan.layout)[0]
    for call in stage_collectives(StageContext(plan=plan, stage=stage)):
        predicted[call.kind, call.group_size, call.num_bytes] += call.count
    assert traced == predicted
    assert ran == predicted

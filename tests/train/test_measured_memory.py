"""Two real processes hold what the plan was predicted to hold, and communicate what inventory and trace say."""

import json
from collections import Counter
from dataclasses import replace

import pytest

from shardwise.launch.request import TrainRequest, make_job
from shardwise.plan_file import read_plan
from shardwise.predict.memory import predict_memory
from shardwise.step.collectives import stage_collectives
from shardwise.step.layer_placement import pipeline_stages
from shardwise.step.stage_context import StageContext
from shardwise.train.tracing.step_record import traced_step
from train.two_processes import MODEL, plan_of_two
from train.world_member import count, run

pytestmark = pytest.mark.runs

ALLOCATED_TOLERANCE = 0.03


def plan_of(layout):
    return plan_of_two(layout, num_layers=4, seq_len=128)


@pytest.mark.parametrize("layout", ["ddp", "fsdp", "tp", "pp", "cp"])
def test_allocated_tensors_of_a_run_are_predicted_within_three_per_cent(worlds, tmp_path, layout):
    plan = plan_of(layout)
    job = make_job(plan, TrainRequest(device="cpu", num_steps=3), prediction=None, run_folder=str(tmp_path))
    worlds[2].run(run, job)
    memory = json.loads((tmp_path / "measurement.json").read_text(encoding="utf-8"))["memory"]
    predicted = predict_memory(plan).worst.peak_allocated_bytes
    assert predicted == pytest.approx(memory["peak_allocated_bytes"], rel=ALLOCATED_TOLERANCE)


@pytest.mark.parametrize("layers", [1, 2])
def test_a_run_that_recomputes_some_blocks_allocates_what_was_predicted(worlds, tmp_path, layers):
    """Of three blocks; with what is brought back beside all that is kept it would be a fifth more."""
    batch = {"seq_len": 512, "micro_batch_size": 2, "global_batch_size": 4}
    plan = plan_of_two("fsdp", num_layers=3, recompute="full", recompute_layers=layers, **batch)
    job = make_job(plan, TrainRequest(device="cpu", num_steps=3), prediction=None, run_folder=str(tmp_path))
    worlds[2].run(run, job)
    memory = json.loads((tmp_path / "measurement.json").read_text(encoding="utf-8"))["memory"]
    predicted = predict_memory(plan).worst.peak_allocated_bytes
    assert predicted == pytest.approx(memory["peak_allocated_bytes"], rel=ALLOCATED_TOLERANCE)


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_a_run_that_splits_backward_allocates_what_was_predicted(worlds, tmp_path, recompute):
    """Without what waits for gradients of weights it would be a fifth less, and two fifths less where all recompute."""
    batch = {"seq_len": 512, "micro_batch_size": 2, "global_batch_size": 8}
    plan = plan_of_two("pp", num_layers=6, recompute=recompute, **batch)
    plan = replace(plan, layout=replace(plan.layout, schedule="zb-h1"))
    job = make_job(plan, TrainRequest(device="cpu", num_steps=2), prediction=None, run_folder=str(tmp_path))
    worlds[2].run(run, job)
    memory = json.loads((tmp_path / "measurement.json").read_text(encoding="utf-8"))["memory"]
    predicted = predict_memory(plan).worst.peak_allocated_bytes
    assert predicted == pytest.approx(memory["peak_allocated_bytes"], rel=ALLOCATED_TOLERANCE)


def test_each_of_four_traced_stages_that_split_backward_holds_what_was_predicted(tmp_path):
    """The more, the more stages are before it: without what waits the last one would hold a third less."""
    model = {**MODEL, "num_hidden_layers": 8, "vocab_size": 1024}
    batch = {"seq_len": 512, "micro_batch_size": 2, "global_batch_size": 32, "precision": "fp32", "compile": False}
    layout = {"dp_shard": 1, "pp": 4, "schedule": "zb-h1"}
    recipe = {**batch, "recompute": "selective"}
    plan = read_plan({"model": model, "cluster": "4xh100-sxm", "layout": layout, "recipe": recipe})
    job = make_job(plan, TrainRequest(device="cuda", num_steps=3), prediction=None, run_folder=str(tmp_path))
    traced = {one.stage: sum(num_bytes for _, num_bytes in one.peak.components) for one in traced_step(job).stages}
    predicted = {one.stage: one.peak_allocated_bytes for one in predict_memory(plan).stages}
    assert {0, 3} <= set(traced)
    for stage, num_bytes in traced.items():
        assert predicted[stage] == pytest.approx(num_bytes, rel=ALLOCATED_TOLERANCE)


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

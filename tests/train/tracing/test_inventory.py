"""What the inventory says of a plan is what the runtime does when traced: the peak, and every byte that travels."""

from collections import Counter

import pytest

from shardwise.launch.request import TrainRequest, make_job
from shardwise.plan_file import read_plan
from shardwise.predict.memory import predict_memory
from shardwise.step.collectives import stage_collectives
from shardwise.step.layer_placement import pipeline_stages
from shardwise.step.stage_context import StageContext
from shardwise.train.tracing.step_record import traced_step

pytestmark = pytest.mark.runs

PEAK_TOLERANCE = 0.002
FEW_BLOCKS = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 6,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}
"""Of llama-3.1-8b's sizes: buckets of DDP span blocks, so all of them are traced."""
PLANS = {
    "by itself": ({"recompute": "full"}, {"dp_shard": 4}),
    "by itself, accumulated": ({"global_batch_size": 16}, {"dp_shard": 4}),
    "gathered and reduced": ({}, {"dp_shard": 4, "spread_vocabulary": False, "exchange_gradients": False}),
    "adapters": ({"adapter": "lora"}, {"dp_shard": 4}),
    "adapters, selectively recomputed": (
        {"adapter": "lora", "recompute": "selective", "lora_dropout_fraction": 0.1, "global_batch_size": 16},
        {"dp_shard": 4},
    ),
    "adapters over two axes": ({"adapter": "lora", "lora_targets": "all-linear"}, {"dp_shard": 2, "tp": 2}),
    "whole base beside adapters": (
        {"adapter": "lora", "recompute": "full"},
        {"dp_replicate": 4, "zero_stage": 0},
        FEW_BLOCKS,
    ),
    "exchanged alone": ({"recompute": "full"}, {"dp_shard": 4, "spread_vocabulary": False}),
}


def planned(recipe, layout, model="llama-3.1-8b"):
    asked = {"seq_len": 4096, "compile": False, **recipe}
    return read_plan({"model": model, "cluster": "4xh100-sxm", "recipe": asked, "layout": layout})


@pytest.mark.parametrize("name", PLANS)
def test_a_traced_step_is_what_the_inventory_says(name):
    plan = planned(*PLANS[name])
    (stage,) = traced_step(make_job(plan, TrainRequest(), prediction=None, run_folder="")).stages
    assert predict_memory(plan).worst.peak_allocated_bytes == pytest.approx(
        stage.peak.allocated_bytes, rel=PEAK_TOLERANCE
    )
    traced, said = Counter(), Counter()
    for call in stage.collectives:
        traced[call.kind, call.group_size] += call.total_bytes
    (placed,) = pipeline_stages(model=plan.model, layout=plan.layout)
    for call in stage_collectives(StageContext(plan=plan, stage=placed)):
        said[call.kind, call.group_size] += call.num_bytes * call.count
    assert traced == said


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_forward_passes_that_all_come_first_meet_no_gradients(schedule):
    """Two micro-batches in flight on the first stage, and under GPipe on the last one with what their losses made."""
    recipe = {"global_batch_size": 4, "seq_len": 8192}
    plan = planned(recipe, {"dp_shard": 2, "pp": 2, "schedule": schedule}, "llama-3.2-1b")
    traced = traced_step(make_job(plan, TrainRequest(), prediction=None, run_folder=""))
    for stage, said in zip(traced.stages, predict_memory(plan).stages, strict=True):
        assert said.peak_allocated_bytes == pytest.approx(stage.peak.allocated_bytes, rel=PEAK_TOLERANCE)


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_four_bit_weights_are_held_as_the_inventory_says(recompute):
    """The inventory counts 4.127 bits a weight, our rows of bytes take 4.133."""
    plan = planned({"adapter": "qlora", "recompute": recompute}, {"dp_shard": 4})
    (stage,) = traced_step(make_job(plan, TrainRequest(), prediction=None, run_folder="")).stages
    peak_bytes = predict_memory(plan).worst.peak_allocated_bytes
    assert peak_bytes == pytest.approx(stage.peak.allocated_bytes, rel=PEAK_TOLERANCE)


def test_a_job_carries_what_the_engine_does_by_itself():
    layout = make_job(planned({}, {"dp_shard": 4}), TrainRequest(), prediction=None, run_folder="").layout
    assert (layout.spread_vocabulary, layout.exchange_gradients) == (True, True)
    tied = make_job(planned({}, {"dp_shard": 4}, "llama-3.2-1b"), TrainRequest(), prediction=None, run_folder="").layout
    assert (tied.spread_vocabulary, tied.exchange_gradients) == (False, True)

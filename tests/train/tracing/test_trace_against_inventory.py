"""Two roads to one step: the runtime traced on fake tensors, and the inventory that predictions rest on."""

from collections import Counter

import pytest

from shardwise.launch.request import TrainRequest, make_job
from shardwise.predict.memory import predict_memory
from shardwise.step.collectives import stage_collectives
from shardwise.step.layer_placement import pipeline_stages
from shardwise.step.stage_context import StageContext
from shardwise.train.tracing.step_record import traced_step
from train.two_processes import LAYOUTS, plan_of_two


def plan_of(layout, **choices):
    return plan_of_two(layout, num_layers=3, **{"seq_len": 256, **choices})


def both_roads(plan):
    """The traced stages, each with its inventory."""
    device = "cpu" if plan.cluster.runs_on_cpu else "auto"
    traced = traced_step(make_job(plan, TrainRequest(device=device), prediction=None, run_folder=""))
    stages = pipeline_stages(model=plan.model, layout=plan.layout)
    return [(stage, StageContext(plan=plan, stage=stages[stage.stage])) for stage in traced.stages]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_tensors_on_processors_are_those_of_the_trace_within_three_per_cent(layout):
    plan = plan_of(layout)
    predicted = predict_memory(plan).stages
    for stage, _ in both_roads(plan):
        said = predicted[stage.stage].peak_allocated_bytes
        assert said == pytest.approx(stage.peak.allocated_bytes, rel=0.03), stage.stage


@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name != "ddp"])
def test_collectives_are_equal_one_to_one(layout):
    """Kind, ranks, bytes and number; of DDP the buckets are of equal length in the inventory, so their sum counts."""
    for stage, context in both_roads(plan_of(layout, cluster="2xh100-sxm", precision="bf16-mixed")):
        traced, predicted = Counter(), Counter()
        for call in stage.collectives:
            traced[call.kind, call.group_size, call.num_bytes] += call.count
        for call in stage_collectives(context):
            predicted[call.kind, call.group_size, call.num_bytes] += call.count
        assert traced == predicted, stage.stage


def test_ddp_sums_the_same_bytes():
    ((stage, context),) = both_roads(plan_of("ddp"))
    traced = sum(call.total_bytes for call in stage.collectives)
    predicted = sum(call.num_bytes * call.count for call in stage_collectives(context))
    assert traced == pytest.approx(predicted, abs=1024)

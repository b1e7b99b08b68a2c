"""How many kernels the host issues for the experts of a rank."""

import pytest

from shardwise.plan_file import read_plan
from shardwise.step.layer_placement import pipeline_stages
from shardwise.step.operations import stage_operations
from shardwise.step.stage_context import StageContext


def kernels_of(engine, precision):
    layout = {"dp_shard": 8, "ep": 8, "zero_stage": 1}
    recipe = {"seq_len": 4096, "precision": precision}
    plan = read_plan(
        {"model": "qwen3-30b-a3b", "cluster": "1xdgx-h100", "engine": engine, "recipe": recipe, "layout": layout}
    )
    (stage,) = pipeline_stages(model=plan.model, layout=plan.layout)
    return {one.name: one.num_kernels for one in stage_operations(StageContext(plan=plan, stage=stage))}


@pytest.mark.parametrize(
    ("engine", "precision", "products", "casts"),
    [("megatron", "fp8-mixed", 16, 34), ("megatron", "bf16-mixed", 1, 0), ("hai-llm", "fp8-mixed", 1, 4)],
)
def test_transformer_engine_issues_every_expert_in_8_bits(engine, precision, products, casts):
    """16 experts on a rank: a product of each, a cast for each of both products, and two for attention."""
    found = kernels_of(engine, precision)
    experts = [count for name, count in found.items() if name.startswith("mlp.experts.")]
    assert experts == [products] * 6
    assert found.get("fp8 casts", 0) == found.get("fp8 casts.backward", 0) == casts

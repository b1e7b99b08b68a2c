"""What waits beside the states of our own trainer."""

from shardwise.plan_file import read_plan
from shardwise.step.placement import pipeline_stages
from shardwise.step.stage_context import StageContext
from shardwise.step.stage_inventory import stage_inventory

BLOCK_ELEMENTS_8B = 218_112_000


def test_after_a_blocks_backward_its_gradients_and_two_inputs_of_reductions_wait():
    """Gradients in bf16 (2 bytes), their fp32 copy that is about to be reduced, and that of the block before it."""
    plan = read_plan(
        {
            "model": "llama-3.1-8b",
            "cluster": "8xh100-sxm",
            "recipe": {"seq_len": 4096},
            "layout": {"dp_shard": 8, "exchange_gradients": False, "spread_vocabulary": False},
            "engine": "native",
        }
    )
    (stage,) = pipeline_stages(model=plan.model, layout=plan.layout)
    (run,) = StageContext(plan=plan, stage=stage).timeline.runs
    waiting = [
        tensor.num_bytes
        for tensor in stage_inventory(plan=plan, stage=stage).tensors
        if tensor.name == "gradients being reduced" and tensor.born <= run.after_last <= tensor.dies
    ]
    assert sum(waiting) == (2 + 4 + 4) * BLOCK_ELEMENTS_8B

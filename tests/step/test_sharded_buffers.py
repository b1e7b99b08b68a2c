"""When FSDP frees what it gathered."""

from shardwise.plan_file import read_plan
from shardwise.step.placement import pipeline_stages
from shardwise.step.stage_context import StageContext
from shardwise.step.stage_inventory import stage_inventory


def test_blocks_that_stay_gathered_are_freed_in_backward_each_after_its_own():
    """torch's ``_fsdp_param_group.post_backward`` reshards whatever ``reshard_after_forward`` says."""
    plan = read_plan(
        {
            "model": "llama-3.1-8b",
            "cluster": "8xh100-sxm",
            "recipe": {"seq_len": 4096},
            "layout": {"dp_shard": 8, "reshard_after_forward": False},
            "engine": "fsdp2",
        }
    )
    (stage,) = pipeline_stages(model=plan.model, layout=plan.layout)
    timeline = StageContext(plan=plan, stage=stage).timeline
    tensors = stage_inventory(plan=plan, stage=stage).tensors
    (gathered,) = [tensor for tensor in tensors if tensor.name == "gathered blocks"]
    assert gathered.born <= timeline.forward
    assert timeline.runs[0].last_backward <= gathered.dies < timeline.backward_end

"""What a stage holds at the moments of a step, for tests that add it up by hand."""

from shardwise.plan import Plan
from shardwise.step.layer_placement import pipeline_stages
from shardwise.step.stage_inventory import stage_inventory

LOAD, FORWARD, LOSS, LOSS_BACKWARD, HEAD = range(5)
LAST_BLOCK, AFTER_LAST, FIRST_BLOCK, AFTER_FIRST, END, STEP, CHECKPOINT = range(5, 12)
"""Moments of a stage with one run of blocks and the head: backward runs the last block first."""


def alive(plan: Plan, *named: str, stage: int = 0) -> list[int]:
    """Bytes of the tensors of these names or components at every moment of a stage, added up."""
    stages = pipeline_stages(model=plan.model, layout=plan.layout)
    inventory = stage_inventory(plan=plan, stage=stages[stage])
    return [
        sum(
            tensor.num_bytes
            for tensor in inventory.tensors
            if tensor.first_use <= moment <= tensor.last_use and {tensor.name, tensor.component}.intersection(named)
        )
        for moment in range(len(inventory.moments))
    ]

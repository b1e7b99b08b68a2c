"""The inventory of one pipeline stage: everything its worst rank holds, from when to when."""

from shardwise.plan import Plan
from shardwise.step.activation_tensors import (
    activation_tensors,
    logit_tensors,
    offloaded_activation_bytes,
    spread_tensors,
)
from shardwise.step.buffers import buffer_tensors
from shardwise.step.inventory import StageInventory
from shardwise.step.placement import Stage
from shardwise.step.stage_context import StageContext
from shardwise.step.state_tensors import held_states


def stage_inventory(plan: Plan, stage: Stage) -> StageInventory:
    """The tensors the worst rank of a stage holds, with the moments between which they are alive."""
    context = StageContext(plan=plan, stage=stage)
    states = held_states(context)
    tensors = [
        *states.tensors,
        *activation_tensors(context),
        *logit_tensors(context),
        *spread_tensors(context),
        *buffer_tensors(context),
    ]
    return StageInventory(
        stage=stage.index,
        moments=context.timeline.moments,
        tensors=tuple(tensor for tensor in tensors if tensor.num_bytes > 0),
        host_bytes=states.host.total_bytes + offloaded_activation_bytes(context),
        nvme_bytes=states.nvme_bytes,
        in_flight_micro_batches=context.in_flight,
    )

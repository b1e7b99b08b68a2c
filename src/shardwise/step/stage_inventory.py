"""The inventory of one pipeline stage: everything its worst rank holds, from when to when."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from shardwise.plan import Plan
from shardwise.step.buffers import buffer_tensors
from shardwise.step.held_stage import content_key
from shardwise.step.inventory import StageInventory, Tensor
from shardwise.step.layer_placement import Stage
from shardwise.step.stage_activations import (
    activation_tensors,
    kept_per_run,
    logit_tensors,
    offloaded_activation_bytes,
    spread_tensors,
    waiting_activations,
)
from shardwise.step.stage_context import StageContext
from shardwise.step.state_dicts import load_host_bytes, save_host_bytes, state_dict_tensors
from shardwise.step.state_tensors import HeldStates, held_states
from shardwise.step.weight_half import held_for_weights, waiting_gradients
from shardwise.units import Bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """The parts of a stage's inventory that are the same for all stages with equal blocks."""

    states: HeldStates
    kept_bytes: Bytes
    """Bytes that every micro-batch keeps for backward."""
    others: tuple[Tensor, ...]
    """Tensors apart from states, and from what other micro-batches keep."""


def stage_inventory(plan: Plan, stage: Stage) -> StageInventory:
    """The tensors the worst rank of a stage holds, with the moments between which they are alive."""
    return inventory_of(StageContext(plan=plan, stage=stage))


def inventory_of(context: StageContext) -> StageInventory:
    """The inventory of a stage of one plan or of a column of plans."""
    return _inventory(context, _content(context))


def stage_inventories(plan: Plan, stages: Iterable[Stage]) -> Iterator[StageInventory]:
    """The inventories of several stages; what some have in common is listed once."""
    known: dict[tuple[object, ...], Content] = {}
    for stage in stages:
        context = StageContext(plan=plan, stage=stage)
        key = (content_key(stage), context.held.forwards_come_first)
        if key not in known:
            known[key] = _content(context)
        yield _inventory(context, known[key])


def _content(context: StageContext) -> Content:
    totals = kept_per_run(context)
    others = (
        *activation_tensors(context, totals),
        *held_for_weights(context, totals),
        *logit_tensors(context),
        *spread_tensors(context),
        *buffer_tensors(context),
        *state_dict_tensors(context),
    )
    return Content(states=held_states(context), kept_bytes=sum(totals), others=others)


def _inventory(context: StageContext, content: Content) -> StageInventory:
    states, kept_bytes = content.states, content.kept_bytes
    waiting = (waiting_activations(context, kept_bytes=kept_bytes), *waiting_gradients(context))
    tensors = (*states.tensors, *waiting, *content.others)
    return StageInventory(
        stage=context.held.index,
        moments=context.timeline.moments,
        tensors=tuple(tensor for tensor in tensors if not tensor.is_empty),
        host_bytes=states.host.total_bytes + offloaded_activation_bytes(context, kept_bytes=kept_bytes),
        nvme_bytes=states.nvme_bytes,
        load_host_bytes=load_host_bytes(context),
        save_host_bytes=save_host_bytes(context),
        in_flight_micro_batches=context.held.in_flight_micro_batches,
    )

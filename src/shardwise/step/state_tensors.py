"""Parameters, gradients and optimizer states of a stage as tensors of the inventory."""

from collections.abc import Iterator
from dataclasses import dataclass

from shardwise.columns import given, is_among, negated, rounded, settled
from shardwise.engines.profile import has_foreach_optimizer
from shardwise.ledger import MemoryComponent
from shardwise.optimizers import OPTIMIZERS
from shardwise.step.gradient_first_uses import gradient_first_uses
from shardwise.step.inventory import Tensor, present
from shardwise.step.own_buffers import accumulates_whole
from shardwise.step.stage_context import StageContext, Unit
from shardwise.step.states import UnitStates, frozen_bytes, unit_states
from shardwise.units import Bytes

GRADIENT_BUFFER_FACTOR = 1.5
"""Pinned staging beside offloaded optimizer states (DeepSpeed ``additional_buffer_factor`` of its own estimators)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostStates:
    """Host memory of one rank in bytes, by what it belongs to."""

    parameters_bytes: Bytes
    gradients_bytes: Bytes
    optimizer_bytes: Bytes

    @property
    def total_bytes(self) -> Bytes:
        """Bytes of all states on the host."""
        return self.parameters_bytes + self.gradients_bytes + self.optimizer_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldStates:
    """All states of a stage's rank and where they live."""

    tensors: tuple[Tensor, ...]
    host: HostStates
    nvme_bytes: Bytes


def held_states(context: StageContext) -> HeldStates:
    """States on the device as tensors, and what offload puts on the host or its drives instead."""
    tensors: list[Tensor] = []
    host_parameters = host_gradients = host_optimizer = nvme = 0
    offload = context.plan.recipe.offload
    stays, on_drives = offload == "none", offload == "nvme"
    on_device = is_among(offload, ("none", "optimizer"))
    for unit in context.held_units:
        states, frozen = trained_states(context, unit), frozen_parameters(context, unit)
        optimizer = (states.master + states.moments) * unit.count
        gradients = states.gradients * unit.count
        parameters = states.parameters * unit.count
        in_memory = negated(stays) & negated(on_drives)
        nvme = nvme + given(on_drives, optimizer)
        host_optimizer = host_optimizer + given(in_memory, rounded(GRADIENT_BUFFER_FACTOR * optimizer))
        host_parameters = host_parameters + given(negated(on_device), parameters + frozen)
        staged = given(on_drives, rounded(GRADIENT_BUFFER_FACTOR * gradients))
        host_gradients = host_gradients + given(negated(stays), gradients) + staged
        tensors += present(stays, _optimizer(context, unit, states))
        tensors += _always(context, f"{unit.name} parameters", "parameters", given(on_device, parameters))
        tensors += _always(context, f"{unit.name} frozen parameters", "parameters", given(on_device, frozen))
        tensors += _gradients(context, unit, given(on_device, gradients))
        step_gradients = given(on_device, states.step_gradients * unit.count)
        tensors += _during_step(context, f"{unit.name} gradients in fp32", "temporaries", step_gradients)
        tensors += present(on_device, _foreach(context, unit, states))
    host = HostStates(parameters_bytes=host_parameters, gradients_bytes=host_gradients, optimizer_bytes=host_optimizer)
    return HeldStates(tensors=tuple(tensors), host=host, nvme_bytes=nvme)


def trained_states(context: StageContext, unit: Unit) -> UnitStates:
    """States of the part of a unit that is trained: all of it, or its adapter."""
    held = context.trained(unit)
    return unit_states(
        held,
        states=context.states,
        recipe=context.plan.recipe,
        zero_stage=context.zero_stage,
        is_hidden_block=unit.is_block,
        matrices=held.matrices,
    )


def frozen_parameters(context: StageContext, unit: Unit) -> Bytes:
    """Bytes of the base of all units of a kind beside adapters, as this rank holds it between passes."""
    if not context.has_adapter:
        return 0
    quantised = context.plan.recipe.adapter == "qlora" and unit.is_block
    zero_stage = context.zero_stage
    return unit.count * frozen_bytes(
        unit.base, recipe=context.plan.recipe, zero_stage=zero_stage, is_quantised=quantised
    )


def _always(context: StageContext, name: str, component: MemoryComponent, num_bytes: Bytes) -> Iterator[Tensor]:
    yield Tensor(name=name, component=component, num_bytes=num_bytes, first_use=0, last_use=context.timeline.last)


def _optimizer(context: StageContext, unit: Unit, states: UnitStates) -> Iterator[Tensor]:
    """Master weights are made with the optimizer; moments by the first step, so that loading does not hold them yet."""
    last = context.timeline.last
    for part, num_bytes, first_use in (
        ("master weights", states.master, 0),
        ("optimizer states", states.moments, context.timeline.forward),
    ):
        yield Tensor(
            name=f"{unit.name} {part}",
            component="optimizer",
            num_bytes=num_bytes * unit.count,
            first_use=first_use,
            last_use=last,
        )


def _during_step(context: StageContext, name: str, component: MemoryComponent, num_bytes: Bytes) -> Iterator[Tensor]:
    moment = context.timeline.optimizer
    yield Tensor(name=name, component=component, num_bytes=num_bytes, first_use=moment, last_use=moment)


def _foreach(context: StageContext, unit: Unit, states: UnitStates) -> Iterator[Tensor]:
    """torch's multi-tensor optimizers make one temporary as large as the parameters they update."""
    temporary = OPTIMIZERS[context.plan.recipe.optimizer].step_temporary
    is_torch = context.profile.is_torch
    is_foreach = has_foreach_optimizer(profile=context.profile, recipe=context.plan.recipe)
    if (is_foreach and temporary == "foreach") or (is_torch and temporary == "always"):
        num_bytes = states.trainable_shard * unit.count * context.states.weight_bytes
        yield from _during_step(context, f"{unit.name} optimizer temporaries", "temporaries", num_bytes)


def _gradients(context: StageContext, unit: Unit, num_bytes: Bytes) -> Iterator[Tensor]:
    """Gradients live for the whole step as buffers or where they accumulate; others are allocated in their backward."""
    timeline, name, persists = context.timeline, f"{unit.name} gradients", context.has_persistent_gradients
    yield from _always(context, name, "gradients", given(persists, num_bytes))
    if context.profile.has_persistent_gradients:
        return
    num_bytes = given(negated(persists), num_bytes)
    waits = accumulates_whole(context)
    adds_up = settled(negated(waits) & (context.plan.num_microbatches > 1) & (not context.held.forwards_come_first))
    comes_late = settled(negated(waits | adds_up))
    first_uses = [
        (given(waits, num_bytes), timeline.optimizer),
        (given(adds_up, num_bytes), timeline.forward),
        *(gradient_first_uses(context, unit, given(comes_late, num_bytes)) if comes_late is not False else ()),
    ]
    for part, first_use in first_uses:
        yield Tensor(name=name, component="gradients", num_bytes=part, first_use=first_use, last_use=timeline.optimizer)

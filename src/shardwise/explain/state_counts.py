"""Bytes of model states per parameter, as the engine keeps them and as the textbook counts them."""

from dataclasses import dataclass, replace

from shardwise.explain.records import Quantity, Source
from shardwise.layout import Layout
from shardwise.ledger import MemoryComponent
from shardwise.optimizers import OPTIMIZERS
from shardwise.plan import Plan
from shardwise.predict.memory import most_bytes
from shardwise.predict.seed_memory import predict_seed_memory, sized_num_params
from shardwise.prediction import StageMemory
from shardwise.units import Bytes, format_gib

__all__ = [
    "HELD_COMPONENTS",
    "StateCount",
    "counted_capacity_bytes",
    "counted_quantity",
    "counted_states",
    "engine_states",
    "is_counted_by_the_textbook",
    "state_bytes_of",
    "states_sentence",
    "textbook_states",
    "told_states",
    "undivided",
]

STATE_COMPONENTS: tuple[MemoryComponent, ...] = ("parameters", "gradients", "optimizer")
HELD_COMPONENTS: tuple[MemoryComponent, ...] = (*STATE_COMPONENTS, "gathered_parameters")
"""States, and the weights that a rank computes with: copies in 16 bits, and units gathered from other ranks."""
TEXTBOOK_AXES = ("dp_shard", "zero_stage", "tp", "cp", "pp")
TEXTBOOK_RECIPE = ("seq_len", "micro_batch_size", "global_batch_size", "precision", "optimizer", "offload", "tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class StateCount:
    """Weights, gradients, master copies and moments of a model before any division."""

    weight_bytes: float
    """Bytes of one parameter, as in the two fields below."""
    gradient_bytes: float
    optimizer_bytes: float
    """Bytes of master copy and moments of one parameter."""
    num_params: float

    @property
    def bytes_per_param(self) -> float:
        """Everything kept of one parameter."""
        return self.weight_bytes + self.gradient_bytes + self.optimizer_bytes

    @property
    def total_bytes(self) -> float:
        """All states together."""
        return self.bytes_per_param * self.num_params


def counted_states(plan: Plan) -> StateCount:
    """The states as the plan's own convention counts them."""
    return textbook_states(plan) if plan.recipe.convention == "seed" else engine_states(plan)


def engine_states(plan: Plan) -> StateCount:
    """The states that a GPU of the engine holds when nothing is divided or moved to the host."""
    alone = undivided(plan)
    weights, gradients, optimizer = (most_bytes(alone, component) for component in STATE_COMPONENTS)
    num_params = plan.model.num_params
    return StateCount(
        weight_bytes=weights / num_params,
        gradient_bytes=gradients / num_params,
        optimizer_bytes=optimizer / num_params,
        num_params=num_params,
    )


def undivided(plan: Plan) -> Plan:
    """The plan with every GPU holding all states."""
    recipe = replace(plan.recipe, offload="none", activation_offload=False)
    return replace(plan, layout=Layout(dp_replicate=plan.cluster.num_gpus, zero_stage=0), recipe=recipe)


def told_states(name: str, plan: Plan, *, components: tuple[MemoryComponent, ...] = STATE_COMPONENTS) -> Quantity:
    """The most that the states of a rank of ``plan`` hold together at one moment."""
    source = Source(plan=plan, field=f"most_bytes.{','.join(components)}")
    return Quantity(name=name, value=most_bytes(plan, *components), unit="bytes", source=source)


def counted_quantity(name: str, plan: Plan) -> Quantity:
    """All states of a plan before any division, by its own convention."""
    if plan.recipe.convention == "seed":
        return Quantity(name=name, value=textbook_states(plan).total_bytes, unit="bytes")
    return told_states(name, undivided(plan))


def states_sentence(plan: Plan) -> str:
    """A clause that says which bytes the undivided states of a plan add up from."""
    states = counted_states(plan)
    if plan.recipe.adapter == "none" or plan.recipe.convention == "seed":
        return (
            f"{states.bytes_per_param:.3g} bytes x {states.num_params:,.0f} parameters are "
            f"{format_gib(states.total_bytes)}: {states.weight_bytes:.3g} of weights, {states.gradient_bytes:.3g} of "
            f"gradients, {states.optimizer_bytes:.3g} of optimizer states"
        )
    trained = (states.gradient_bytes + states.optimizer_bytes) * states.num_params
    return (
        f"the frozen weights with their adapters are {format_gib(states.weight_bytes * states.num_params)}, gradients "
        f"and optimizer states exist of the adapters alone: {format_gib(trained)}"
    )


def textbook_states(plan: Plan) -> StateCount:
    """Bytes by the textbook: 2 + 2 + 8 with Adam in 16 bits, over the round size of a model known by it."""
    alone = replace(plan, layout=Layout(), recipe=replace(plan.recipe, offload="none"))
    stage = predict_seed_memory(alone).worst
    num_params = sized_num_params(plan.model) or float(plan.model.num_params)
    return StateCount(
        weight_bytes=stage.component_bytes("parameters") / num_params,
        gradient_bytes=stage.component_bytes("gradients") / num_params,
        optimizer_bytes=stage.component_bytes("optimizer") / num_params,
        num_params=num_params,
    )


def counted_capacity_bytes(plan: Plan) -> Bytes:
    """Memory of a GPU by the plan's convention: the textbook's is the figure it is sold with."""
    gpu = plan.cluster.gpu
    return gpu.nominal_memory_bytes or gpu.memory_bytes if plan.recipe.convention == "seed" else gpu.memory_bytes


def state_bytes_of(stage: StageMemory) -> Bytes:
    """Parameters, gradients and optimizer states of a stage's worst rank."""
    return sum(stage.component_bytes(component) for component in STATE_COMPONENTS)


def is_counted_by_the_textbook(plan: Plan, edited: Plan) -> bool:
    """Whether the textbook's arithmetic sees everything in which an edit changes the recipe, or an axis it divides by.

    It has no 8-bit optimizer (which would count as none), recomputation, adapters, buffers or schedules, and moves
    nothing but Adam's moments to the host.
    """
    before, after = plan.recipe, edited.recipe
    if any(getattr(before, name) != getattr(after, name) for name in before.__slots__ if name not in TEXTBOOK_RECIPE):
        return False
    if before.optimizer != after.optimizer and OPTIMIZERS[after.optimizer].seed_optimizer == "none":
        return False
    if before.precision != after.precision and "fp32" not in (before.precision, after.precision):
        return False
    if before.offload != after.offload and after.offload not in ("none", "optimizer"):
        return False
    if before != replace(after, global_batch_size=before.global_batch_size):
        return True
    return any(getattr(plan.layout, axis) != getattr(edited.layout, axis) for axis in TEXTBOOK_AXES)

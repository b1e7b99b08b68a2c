"""Bytes of model states per parameter, as the engine keeps them and as the textbook counts them."""

from dataclasses import dataclass, replace

from shardwise.engines.table import state_bytes
from shardwise.layout import Layout
from shardwise.ledger import MemoryComponent
from shardwise.optimizers import OPTIMIZERS
from shardwise.plan import Plan
from shardwise.predict.seed_memory import predict_seed_memory, sized_num_params
from shardwise.prediction import StageMemory
from shardwise.units import Bytes

__all__ = [
    "StateCount",
    "counted_capacity_bytes",
    "counted_states",
    "engine_states",
    "is_counted_by_the_textbook",
    "state_bytes_of",
    "textbook_states",
]

STATE_COMPONENTS: tuple[MemoryComponent, ...] = ("parameters", "gradients", "optimizer")
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
    """Bytes that the engine keeps of each trained parameter."""
    states = state_bytes(engine=plan.engine, precision=plan.recipe.precision)
    optimizer = OPTIMIZERS[plan.recipe.optimizer]
    moment_bytes = 1 if optimizer.is_8bit else states.moment_bytes
    return StateCount(
        weight_bytes=states.weight_bytes,
        gradient_bytes=states.gradient_bytes,
        optimizer_bytes=states.master_bytes + optimizer.moments * moment_bytes,
        num_params=plan.model.num_params,
    )


def textbook_states(plan: Plan) -> StateCount:
    """Bytes by the textbook: 2 + 2 + 8 with Adam in 16 bits, over the round size of a model known by it."""
    undivided = replace(plan, layout=Layout(), recipe=replace(plan.recipe, offload="none"))
    stage = predict_seed_memory(undivided).worst
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

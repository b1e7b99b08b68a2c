"""Bytes of model states per parameter, as the engine keeps them and as the textbook counts them."""

from dataclasses import dataclass, replace

from shardwise.engine import state_bytes
from shardwise.layout import Layout
from shardwise.ledger import MemoryComponent
from shardwise.plan import Plan
from shardwise.predict.seed_memory import SEED_OPTIMIZERS, predict_seed_memory, sized_num_params
from shardwise.prediction import StageMemory
from shardwise.step.states import OPTIMIZERS
from shardwise.units import Bytes

__all__ = [
    "StateCount",
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

    bytes_per_param: float
    num_params: float

    @property
    def total_bytes(self) -> float:
        """All states together."""
        return self.bytes_per_param * self.num_params


def counted_states(plan: Plan) -> StateCount:
    """The states as the plan's own convention counts them."""
    return textbook_states(plan) if plan.recipe.convention == "seed" else engine_states(plan)


def engine_states(plan: Plan) -> StateCount:
    """What the engine keeps of each trained parameter."""
    states = state_bytes(engine=plan.engine, precision=plan.recipe.precision)
    optimizer = OPTIMIZERS[plan.recipe.optimizer]
    moment_bytes = 1 if optimizer.is_8bit else states.moment_bytes
    each = states.weight_bytes + states.gradient_bytes + states.master_bytes + optimizer.moments * moment_bytes
    return StateCount(bytes_per_param=each, num_params=plan.model.num_params)


def textbook_states(plan: Plan) -> StateCount:
    """What the textbook counts: 2 + 2 + 8 bytes with Adam in 16 bits, over the round size of a model known by it."""
    undivided = replace(plan, layout=Layout(), recipe=replace(plan.recipe, offload="none"))
    total_bytes = state_bytes_of(predict_seed_memory(undivided).worst)
    num_params = sized_num_params(plan.model) or float(plan.model.num_params)
    return StateCount(bytes_per_param=total_bytes / num_params, num_params=num_params)


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
    if before.optimizer != after.optimizer and after.optimizer not in SEED_OPTIMIZERS:
        return False
    if before.precision != after.precision and "fp32" not in (before.precision, after.precision):
        return False
    if before.offload != after.offload and after.offload not in ("none", "optimizer"):
        return False
    if before != replace(after, global_batch_size=before.global_batch_size):
        return True
    return any(getattr(plan.layout, axis) != getattr(edited.layout, axis) for axis in TEXTBOOK_AXES)

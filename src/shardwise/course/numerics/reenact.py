"""Re-enact the training steps of a plan: every rank of it, on one batch after the other, beside one device."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import gcd

import numpy as np

from shardwise.course.numerics.adamw import AdamW
from shardwise.course.numerics.arrays import Array, Weights, worst_error
from shardwise.course.numerics.batch import Batch, divide, even_shares
from shardwise.course.numerics.context_parallel import Balance
from shardwise.course.numerics.division import Division
from shardwise.course.numerics.replicated_states import ReplicatedStates
from shardwise.course.numerics.sharded_states import ShardedStates
from shardwise.course.numerics.slots import Slot
from shardwise.course.numerics.stage_program import StageProgram, States, StepInput
from shardwise.course.numerics.tiny_model import require_plain
from shardwise.course.numerics.world import Message, Rank, run_world
from shardwise.engines.table import engine_profile
from shardwise.errors import SimulationError
from shardwise.layout import Layout
from shardwise.plan import Plan
from shardwise.rules import require_valid
from shardwise.schedules.actions import Order
from shardwise.schedules.make import make_schedule
from shardwise.schedules.shape import ScheduleShape
from shardwise.schedules.table import DEFAULT_SCHEDULE
from shardwise.step.held_stage import num_microbatches_per_round
from shardwise.step.reduction_policy import shards_unit_by_unit


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Choices of a re-enactment that are not in the plan."""

    settings: AdamW = field(default_factory=AdamW)
    shares: tuple[tuple[int, ...], ...] | None = None
    """Sequences of every data-parallel rank's micro-batches; as even as they can be when left out."""
    balance: Balance = "zigzag"
    capacity_ratio: float | None = None


@dataclass(frozen=True, kw_only=True)
class Reenactment:
    """What re-enacting the training steps of a plan gave."""

    plan: Plan
    losses: tuple[float, ...]
    """The loss of each step."""
    gradients: Weights
    """Gradients of the whole model in the last step, before clipping."""
    weights: Weights
    """Weights of the whole model after the last step."""
    ranks: tuple[Rank, ...]
    """The ranks, each with what it has sent and held."""
    divisions: tuple[Division, ...]
    copy_error: float
    """The largest difference between ranks that hold copies of the same weights or gradients."""

    @property
    def messages(self) -> tuple[Message, ...]:
        """Every exchange of every rank."""
        return tuple(message for rank in self.ranks for message in rank.messages)


def reenact(plan: Plan, weights: Weights, batches: Sequence[Batch], options: Options | None = None) -> Reenactment:
    """Train on every batch in turn.

    Args:
        plan: its model has to be one that is re-enacted; cluster and precision do not matter.
        weights: of the whole model, at the start; they are not changed.
        batches: one for each step.
        options: what the plan does not say.

    Raises:
        LayoutError: the plan breaks a rule.
        RecipeError: the batch cannot be divided.
        ModelError: the model has a part that is not re-enacted.
    """
    require_plain(plan.model)
    require_valid(plan)
    _require_simulated(plan)
    chosen = options or Options()
    layout = plan.layout
    ranks = tuple(Rank(number=number, plan=plan) for number in range(layout.world_size))
    divisions = tuple(Division(plan=plan, number=rank.number) for rank in ranks)
    states = [_states(rank, part, weights) for rank, part in zip(ranks, divisions, strict=True)]
    losses = []
    for batch in batches:
        given = _step_inputs(plan, ranks, batch, chosen)
        programs = [
            StageProgram(rank=rank, division=part, states=own, given=step).step()
            for rank, part, own, step in zip(ranks, divisions, states, given, strict=True)
        ]
        seen = run_world(ranks, programs)
        losses.append(sum(loss for rank, loss in zip(ranks, seen, strict=True) if rank.number % layout.tp == 0))
    slots = [one.slots for one in states]
    gradients, gradient_error = _assembled(divisions, slots, weights, use_gradients=True)
    updated, weight_error = _assembled(divisions, slots, weights, use_gradients=False)
    return Reenactment(
        plan=plan,
        losses=tuple(losses),
        gradients=gradients,
        weights=updated,
        ranks=ranks,
        divisions=divisions,
        copy_error=max(gradient_error, weight_error),
    )


def one_device(plan: Plan, weights: Weights, batches: Sequence[Batch], options: Options | None = None) -> Reenactment:
    """Train on one device, without sharding: the result that every way to divide the work has to equal."""
    cluster = replace(plan.cluster, num_nodes=1, node=replace(plan.cluster.node, gpus_per_node=1))
    alone = replace(
        plan,
        engine="fsdp2",
        cluster=cluster,
        layout=Layout(zero_stage=0),
        recipe=replace(plan.recipe, micro_batch_size=1, global_batch_size=1),
    )
    chosen = replace(options or Options(), shares=None)
    return reenact(alone, weights, batches, chosen)


def gradient_error(found: Reenactment, expected: Reenactment) -> float:
    """The largest relative error of any weight's gradient."""
    return worst_error(found.gradients, expected.gradients)


def weight_error(found: Reenactment, expected: Reenactment) -> float:
    """The largest relative error of any weight after the steps."""
    return worst_error(found.weights, expected.weights)


def _states(rank: Rank, division: Division, weights: Weights) -> States:
    own = division.take(weights)
    if shards_unit_by_unit(rank.plan):
        return ShardedStates(rank, division, own)
    return ReplicatedStates(rank, division, own)


def _step_inputs(plan: Plan, ranks: Sequence[Rank], batch: Batch, options: Options) -> list[StepInput]:
    shares = options.shares or even_shares(
        num_sequences=len(batch.tokens_BS),
        data_parallel_size=plan.layout.data_parallel_size,
        num_microbatches=plan.num_microbatches,
    )
    parts = divide(batch, shares)
    orders = _orders(plan, len(parts[0]))
    return [
        StepInput(
            micro_batches=parts[rank.data_index],
            num_learned_tokens=batch.num_learned_tokens,
            order=orders[rank.stage],
            settings=options.settings,
            balance=options.balance,
            capacity_ratio=options.capacity_ratio,
        )
        for rank in ranks
    ]


def _orders(plan: Plan, num_microbatches: int) -> tuple[Order, ...]:
    """The passes of every stage, from the same schedules that are timed."""
    layout = plan.layout
    shape = ScheduleShape(
        name=layout.schedule if layout.pp > 1 else DEFAULT_SCHEDULE,
        pp=layout.pp,
        vpp=layout.vpp if layout.pp > 1 else 1,
        num_microbatches=num_microbatches,
        num_microbatches_per_round=num_microbatches_per_round(plan),
    )
    return make_schedule(shape).orders


def _require_simulated(plan: Plan) -> None:
    """Refuse layouts that run elsewhere but are not re-enacted."""
    layout = plan.layout
    if layout.model_copies > 1:
        raise SimulationError(
            "schedule dualpipe runs two copies of the model, which are not re-enacted",
            code="simulate-layout",
            fix="set schedule=dualpipev",
        )
    if layout.expert_tp > 1:
        raise SimulationError(
            f"experts divided over expert_tp={layout.expert_tp} are not re-enacted",
            code="simulate-layout",
            fix="set expert_tp=1",
        )
    if layout.reshard_size is not None:
        raise SimulationError(
            f"parameters that are divided again over {layout.reshard_size} ranks are not re-enacted",
            code="simulate-layout",
            fix="leave out reshard_size",
        )
    attention = plan.model.attention
    heads = 0 if attention is None else attention.num_key_value_heads // min(layout.tp, attention.num_key_value_heads)
    if engine_profile(plan.engine).sharding == "deepspeed" and heads % layout.cp:
        raise SimulationError(
            f"cp={layout.cp} cannot exchange the {heads} key-value heads of a rank for tokens",
            code="simulate-layout",
            fix=f"set cp={gcd(heads, layout.cp)}",
        )
    if plan.model.is_moe and layout.tp > 1 and not layout.sequence_parallel:
        raise SimulationError(
            f"with tp={layout.tp} every rank would send the same tokens to the experts",
            code="simulate-layout",
            fix="set sequence_parallel=true or tp=1",
        )


def _assembled(
    divisions: Sequence[Division], slots: Sequence[Sequence[Slot]], like: Weights, *, use_gradients: bool
) -> tuple[Weights, float]:
    """The weights (or gradients) of the whole model from every rank's vectors, and how far copies are apart."""
    whole = {key: np.full_like(array, np.nan) for key, array in like.items()}
    error = 0.0
    for number, (division, own) in enumerate(zip(divisions, slots, strict=True)):
        for position, slot in enumerate(own):
            part = slot.flattening
            first = number - division.rank.index_in(part.group) * part.group.stride
            members = [first + i * part.group.stride for i in range(part.group.size)] if slot.is_shard else [number]
            vectors = [_vector(slots[member][position], use_gradients=use_gradients) for member in members]
            found = part.join(vectors) if slot.is_shard else part.split(vectors[0])
            for key, array in found.items():
                place = division.part(division.weights[key])
                before = whole[key][place]
                if not np.isnan(before).any() and before.size:
                    error = max(error, float(np.abs(before - array).max()))
                whole[key][place] = array
    return whole, error


def _vector(slot: Slot, *, use_gradients: bool) -> Array:
    return slot.gradient if use_gradients else slot.weights

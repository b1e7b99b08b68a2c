"""Operations that run once per step or belong to data parallelism: copies, accumulation, clipping, optimizer."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from shardwise.columns import either
from shardwise.optimizers import OPTIMIZERS
from shardwise.step.inventory import Operation
from shardwise.step.native_engine import clips_in_update, is_alone, is_native_engine
from shardwise.step.operation_context import OperationContext
from shardwise.step.reduction_policy import defers_reductions, needs_norm
from shardwise.step.stage_context import StageContext
from shardwise.units import Flop

GRADIENT_NORM_BYTES = 4
"""Bytes per gradient element read for the norm of fp32 gradients."""
CLIPPING_BYTES = 8
"""Bytes per gradient element read and written by the scaling, which always runs (torch ``clip_grads_with_norm_``, our
trainer; Megatron-LM ``core/optimizer/clip_grads.py`` where the factor stays on the device, otherwise below 1 only)."""
BEFORE_NORM = ("gradient buffer", "gradient norm")
"""Operations before the norm of all gradients is known; all other operations of the optimizer phase wait for it."""

SCALING_PASSES = 2
"""Megatron-LM divides each bucket of gradients by the data-parallel ranks before it is reduced, read and written,
unless there is one (``core/distributed/param_and_grad_buffer.py`` ``start_grad_sync``: ``grad_data *=
gradient_scaling_factor``, which ``distributed_data_parallel.py`` sets to 1 over the ranks of dp and cp;
``--ddp-average-in-collective`` and a loss per token leave it out, both off by default)."""
CLEARING_PASSES = 1
"""Megatron-LM clears the whole gradient buffer before every step (``zero_grad_buffer``, which ``training/training.py``
``train_step`` calls, and ``reset`` beside the former)."""


NEWTON_SCHULZ_STEPS = 5
"""Jordan 2024, "Muon": five iterations of ``X X^T``, its square and one product with X."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedElements:
    """Elements of one stage on one rank that are trained."""

    whole: int
    """Elements after tensor, pipeline and expert parallelism."""
    shard: int
    """Elements that this rank's optimizer updates."""


def trained_elements(context: StageContext) -> TrainedElements:
    """Elements whose gradients this rank computes, and those it updates."""
    held = [(unit.adapter if context.has_adapter else unit.base, unit.count) for unit in context.held_units]
    whole = sum(weights.full * count for weights, count in held)
    shard = sum(weights.shard * count for weights, count in held)
    return TrainedElements(whole=whole, shard=either(context.zero_stage >= 1, shard, whole))


def sharding_operations(context: StageContext, operation: OperationContext) -> Iterator[Operation]:
    """Copies per micro-batch that sharding or autocast adds around the blocks.

    FSDP copies every gathered unit out of the flat buffer, and its gradients into another one (torch
    ``_fsdp_collectives.py``); autocast, and FSDP on one rank, cast fp32 weights once per micro-batch; whole gradients
    are accumulated.
    """
    states = context.states
    spread = context.embedding_elements + context.head_elements if context.vocabulary_ranks > 1 else 0
    whole = trained_elements(context).whole - spread
    held = sum(unit.base.full * unit.count for unit in context.units) - spread
    if context.gathers_parameters and context.plan.layout.state_shard_size > 1:
        copied = 2 * states.compute_bytes * held
        yield operation.memory_operation("gather copies", "forward", copied)
        again = 0 if keeps_gathered(context) else copied
        reduced = (states.compute_bytes + states.reduce_bytes) * whole
        if context.exchanges_gradients:
            # Copied as they are; what arrives is read, and its sum written in fp32.
            sums = whole // context.plan.layout.state_shard_size
            reduced = 3 * states.compute_bytes * whole + states.reduce_bytes * sums
        yield operation.memory_operation("reduce copies", "backward", again + reduced)
    elif context.is_autocast or (context.gathers_parameters and states.compute_bytes < states.weight_bytes):
        casts = (states.weight_bytes + states.compute_bytes) * held
        yield operation.memory_operation("autocast copies", "forward", casts)
        # One rank under our trainer keeps what the gradients of a single micro-batch were cast to: nothing is added.
        is_kept = is_native_engine(context.plan) & is_alone(context.plan.layout) & (context.plan.num_microbatches == 1)
        added = (states.compute_bytes + either(is_kept, 1, 2) * states.gradient_bytes) * whole
        yield operation.memory_operation("gradient accumulation", "backward", added)
    elif context.keeps_halves:
        # torch casts the first micro-batch's gradient to fp32, and casts and adds every later one.
        one, later = states.compute_bytes + states.weight_bytes, context.rounds - 1
        traffic = one + 3 * states.weight_bytes * later / context.rounds
        yield operation.memory_operation("gradient accumulation", "backward", traffic * whole if later else 0)
    elif accumulated_bytes(context):
        yield operation.memory_operation("gradient accumulation", "backward", accumulated_bytes(context) * whole)


def accumulated_bytes(context: StageContext) -> float:
    """Traffic per element and micro-batch of adding whole 16-bit gradients up, a kernel for every weight.

    torch takes the first micro-batch's gradient over and adds every later one to it: two read, one written
    (``csrc/autograd/functions/accumulate_grad.h``). DeepSpeed's optimizer for bf16 drops the 16-bit gradient before
    every backward and adds a copy in fp32 to its accumulator (``runtime/bf16_optimizer.py`` ``update_hp_grads``).
    Megatron's products add into the buffer themselves; gradients reduced in every micro-batch are not whole.

    Source: the named files.
    Assumes: gradients of all weights in every micro-batch.
    """
    states, profile, rounds = context.states, context.profile, context.rounds
    if profile.sharding == "megatron" or context.gathers_parameters or not defers_reductions(context.plan):
        return 0.0
    accumulator = states.gradient_bytes - states.compute_bytes
    if accumulator > 0:
        return states.compute_bytes + accumulator + 3 * accumulator
    return 3 * states.gradient_bytes * (rounds - 1) / rounds


def keeps_gathered(context: StageContext) -> bool:
    """Whether gathered blocks stay from forward to backward, as pipelines do."""
    return not context.plan.layout.reshard_after_forward or context.plan.layout.pp > 1


def optimizer_operations(context: StageContext, operation: OperationContext) -> Iterator[Operation]:
    """Gradient norm, clipping and the update of this rank's shard; on the host when it is offloaded."""
    states, recipe = context.states, context.plan.recipe
    elements = trained_elements(context)
    shard = elements.shard
    gradient = max(states.gradient_bytes, states.step_gradient_bytes)
    if context.profile.sharding == "megatron":
        ranks = context.plan.layout.data_parallel_size * context.plan.layout.cp
        passes = CLEARING_PASSES + (SCALING_PASSES if ranks > 1 else 0)
        buffer = passes * states.gradient_bytes * elements.whole
        yield operation.memory_operation("gradient buffer", "optimizer", buffer)
    if needs_norm(context.plan):
        yield operation.memory_operation("gradient norm", "optimizer", shard * GRADIENT_NORM_BYTES * gradient / 4)
    if needs_norm(context.plan) and not clips_in_update(context.plan):
        yield operation.memory_operation("gradient clipping", "optimizer", shard * CLIPPING_BYTES * gradient / 4)
    if recipe.offload != "none":
        return
    kind = OPTIMIZERS[recipe.optimizer]
    moved = update_bytes(context, gradient_bytes=gradient)
    update = operation.memory_operation("update", "optimizer", shard * moved)
    yield replace(update, kind="optimizer")
    if kind.orthogonalises_matrices:
        yield replace(
            operation.memory_operation("newton_schulz", "optimizer", 0, flop=_newton_schulz_flop(context)),
            kind="matmul",
            m=operation.hidden_size,
            n=operation.hidden_size,
            k=operation.hidden_size,
        )


def update_bytes(context: StageContext, *, gradient_bytes: float) -> float:
    """Bytes per parameter that one update reads and writes: weights, moments, a gradient, and the 16-bit copy."""
    states, kind = context.states, OPTIMIZERS[context.plan.recipe.optimizer]
    weights = 2 * (states.master_bytes or states.weight_bytes)
    copy = states.weight_bytes if states.master_bytes else 0
    traffic = kind.state_traffic_bytes
    if is_native_engine(context.plan) and kind.own_state_traffic_bytes is not None:
        traffic = kind.own_state_traffic_bytes
    return weights + gradient_bytes + copy + traffic * states.moment_bytes / 4


def _newton_schulz_flop(context: StageContext) -> Flop:
    """FLOP to orthogonalise this rank's share of hidden matrices: ``2 r (2 r c + r^2)`` a step, r the short side."""
    layout = context.plan.layout
    total = 0.0
    for layer, count in context.layer_runs:
        for weight in layer.weights:
            if weight.is_matrix and weight.role == "matrix":
                short, long = sorted(weight.shape[-2:])
                copies = weight.shape[0] if len(weight.shape) == 3 else 1
                total += count * copies * 2 * short * (2 * short * long + short**2)
    return NEWTON_SCHULZ_STEPS * total / (layout.tp * layout.state_shard_size)

"""Gathered parameters, communication buffers and other transients of a stage as tensors of the inventory."""

from collections.abc import Iterator

from shardwise.model import AttentionSpec, MoeSpec
from shardwise.optimizers import OPTIMIZERS
from shardwise.step.inventory import Tensor
from shardwise.step.own_buffers import own_buffers
from shardwise.step.sharded_buffers import (
    DEEPSPEED_BUCKET_ELEMENTS,
    fully_sharded_tensors,
    tensor,
    trainable_elements,
    zero_3_tensors,
)
from shardwise.step.stage_context import StageContext
from shardwise.step.states import EIGHT_BIT_PIECE_BYTES, EIGHT_BIT_PIECE_ELEMENTS
from shardwise.units import MIB, Bytes

LIBRARY_WORKSPACE_BYTES = 64 * MIB
"""cuBLAS and cuBLASLt workspaces inside torch's allocator (32 MiB each on Hopper: torch ``CUDABlas.cpp``)."""


def buffer_tensors(context: StageContext) -> Iterator[Tensor]:
    """All transients that belong to the engine's way of sharding and communicating."""
    if not context.plan.cluster.runs_on_processors:  # which multiply without them
        yield tensor("library workspaces", "temporaries", LIBRARY_WORKSPACE_BYTES, 0, context.timeline.last)
    if context.gathers_parameters and context.is_own_runtime:
        yield from own_buffers(context)
    elif context.gathers_parameters and context.profile.sharding == "deepspeed":
        yield from zero_3_tensors(context)
    elif context.gathers_parameters:
        yield from fully_sharded_tensors(context)
    else:
        yield from _replicated(context)
    yield from _weight_gradients(context)
    yield from _exchanges(context)
    yield from _eight_bit_moments(context)


def _eight_bit_moments(context: StageContext) -> Iterator[Tensor]:
    """Our trainer's 8-bit AdamW makes numbers of its moments and codes of these again, a piece at a time."""
    recipe = context.plan.recipe
    if not context.is_own_runtime or not OPTIMIZERS[recipe.optimizer].is_8bit or recipe.offload != "none":
        return
    largest = max((context.trained(unit).largest_matrix for unit in context.held_units), default=0)
    num_bytes = EIGHT_BIT_PIECE_BYTES * min(EIGHT_BIT_PIECE_ELEMENTS, largest)
    step = context.timeline.optimizer
    yield tensor("8-bit moments as numbers", "temporaries", num_bytes, step, step)


def _replicated(context: StageContext) -> Iterator[Tensor]:
    """Data parallel without parameter sharding: buckets, cached low-precision weights, ZeRO-1/2 staging."""
    timeline, states = context.timeline, context.states
    elements = sum(trainable_elements(context, unit) * unit.count for unit in context.held_units)
    if context.is_autocast:
        yield from _autocast_copies(context)
    if context.profile.sharding == "deepspeed":
        # ZeRO's flat buffers are allocated whatever the number of ranks.
        bucket = min(DEEPSPEED_BUCKET_ELEMENTS, elements) * states.reduce_bytes
        yield tensor(
            "reduce buckets", "communication_buffers", 2 * bucket, timeline.head_backward, timeline.backward_end
        )
        yield tensor("all-gather bucket", "communication_buffers", bucket, timeline.optimizer, timeline.optimizer)
    elif context.is_distributed_data_parallel and context.profile.ddp_copies_gradients and context.zero_stage <= 1:
        copy = elements * states.gradient_bytes
        yield tensor("DDP gradient buckets", "communication_buffers", copy, 0, timeline.last)
    elif context.is_own_runtime and context.is_distributed_data_parallel and context.plan.num_microbatches > 1:
        # Gradients that no micro-batch has sent yet are tensors of their own beside DDP's buckets (traced).
        copy = elements * states.gradient_bytes
        yield tensor("gradients beside their buckets", "gradients", copy, timeline.forward, timeline.backward_end)


def _autocast_copies(context: StageContext) -> Iterator[Tensor]:
    """Low-precision copies of fp32 weights: cached until forward ends, and kept by the graph until a block's backward.

    A recomputed block casts its weights again while it runs backward.
    """
    timeline, compute = context.timeline, context.states.compute_bytes
    name = "autocast weight copies"
    for unit in context.held_units:
        if not unit.is_block:
            head = compute * context.head_elements
            yield tensor(name, "gathered_parameters", head, timeline.forward, timeline.head_backward)
            continue
        moments = timeline.runs[unit.run]
        copies = compute * unit.base.full
        recomputed = context.held_runs[unit.run].num_recomputed
        kept = unit.count - recomputed
        cached_until = timeline.loss_forward
        yield tensor(name, "gathered_parameters", recomputed * copies, timeline.forward, cached_until)
        if recomputed:
            for moment in moments.inside:
                yield tensor(name, "gathered_parameters", copies, moment, moment)
        if kept:
            yield tensor(name, "gathered_parameters", (kept - 1) * copies, timeline.forward, moments.first_backward)
            yield tensor(name, "gathered_parameters", copies, timeline.forward, moments.last_backward)


def _weight_gradients(context: StageContext) -> Iterator[Tensor]:
    """Whole-tensor gradients on their way into an accumulation buffer."""
    timeline, compute = context.timeline, context.states.compute_bytes
    if context.plan.recipe.adapter == "qlora":
        largest = max((unit.base.largest_matrix for unit in context.held_units if unit.is_block), default=0)
        for moments in timeline.runs:
            yield tensor(
                "dequantised weight", "temporaries", compute * largest, moments.first_backward, moments.last_backward
            )
    if context.has_adapter or context.gathers_parameters:
        return
    accumulates = context.has_persistent_gradients or context.plan.num_microbatches > 1
    if context.profile.keeps_dummy_weight_gradients:
        # One placeholder per matrix shape, cached for the whole run (TransformerEngine ``get_dummy_wgrad``).
        shapes = {unit.base.matrices for unit in context.held_units if unit.is_block}
        yield tensor("placeholder weight gradients", "temporaries", compute * sum(shapes), 0, timeline.last)
    elif accumulates or context.is_autocast:
        # A gradient is made whole before it is added, or cast to fp32; otherwise it becomes the gradient itself.
        largest = max((unit.base.largest_matrix for unit in context.held_units if unit.is_block), default=0)
        for born, dies in timeline.spans_of_backward:
            yield tensor("weight gradient", "temporaries", compute * largest, born, dies)
    is_torch = context.profile.is_torch
    if is_torch and context.plan.layout.tp > 1 and not context.is_own_runtime:
        # DTensor's row-wise embedding leaves the whole table's gradient on every rank until the optimizer (traced).
        others = (context.plan.layout.tp - 1) * context.embedding_elements * context.states.gradient_bytes
        yield tensor("whole embedding gradient", "gradients", others, timeline.backward_end, timeline.optimizer)
    if context.profile.keeps_dummy_weight_gradients or accumulates or context.is_autocast:
        head = compute * context.head_elements
        yield tensor("head weight gradient", "temporaries", head, timeline.head_backward, timeline.head_backward)
    if context.profile.keeps_dummy_weight_gradients or accumulates:
        table = (
            context.states.compute_bytes if context.profile.has_persistent_gradients else context.states.weight_bytes
        )
        end = timeline.backward_end
        yield tensor("embedding gradient", "temporaries", table * context.embedding_elements, end, end)


def received_messages(context: StageContext) -> int:
    """Messages of the pipeline with a buffer: two, or under torch's stages one for every micro-batch and direction.

    Source: torch ``distributed/pipelining/stage.py`` (``_setup_forward_recv_info``).
    """
    if not context.is_own_runtime:
        return 2
    chunks = len(context.stage.chunks)
    directions = 2 * chunks - context.stage.has_embedding - context.stage.has_head
    return context.plan.num_microbatches * directions


def _exchanges(context: StageContext) -> Iterator[Tensor]:
    """Buffers of tensor, context, expert and pipeline exchanges while a block runs."""
    layout, timeline, block = context.plan.layout, context.timeline, context.block_context
    hidden = block.tokens * block.hidden_size * block.element_bytes
    for run, held in enumerate(context.held_runs):
        layer, num_bytes = held.layer, 0.0
        if layout.tp > 1:
            num_bytes += hidden
        if layout.cp > 1 and isinstance(layer.mixer, AttentionSpec):
            heads = max(1.0, layer.mixer.num_key_value_heads / layout.tp)
            num_bytes += 4 * block.tokens * heads * layer.mixer.head_dim * block.element_bytes
        if layout.ep > 1 and isinstance(layer.feed_forward, MoeSpec):
            num_bytes += 2 * hidden * layer.feed_forward.num_experts_per_tok / block.sequence_shards
        moments = timeline.runs[run]
        for moment in moments.inside:
            yield tensor("exchange buffers", "communication_buffers", num_bytes, moment, moment)
    if layout.pp > 1:
        boundary: Bytes = received_messages(context) * hidden // block.sequence_shards
        yield tensor(
            "pipeline send and receive", "communication_buffers", boundary, timeline.forward, timeline.backward_end
        )

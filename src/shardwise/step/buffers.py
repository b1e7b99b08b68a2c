"""Gathered parameters, communication buffers and other transients of a stage as tensors of the inventory."""

from collections.abc import Iterator, Sequence

from shardwise.columns import largest, least, most, negated
from shardwise.model import AttentionSpec, MoeSpec
from shardwise.optimizers import OPTIMIZERS
from shardwise.step.inventory import Tensor, present
from shardwise.step.own_buffers import own_buffers
from shardwise.step.sharded_buffers import (
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
    if not context.plan.cluster.runs_on_cpu:  # which multiply without them
        yield tensor("library workspaces", "temporaries", LIBRARY_WORKSPACE_BYTES, 0, context.timeline.last)
    gathers = context.gathers_parameters
    if context.is_native_engine:
        yield from present(gathers, own_buffers(context))
    elif context.profile.sharding == "deepspeed":
        yield from present(gathers, zero_3_tensors(context))
    else:
        yield from present(gathers, fully_sharded_tensors(context))
    yield from present(negated(gathers), _replicated(context))
    yield from _dequantised_weights(context)
    if not context.has_adapter:
        yield from present(negated(gathers), _weight_gradients(context))
    yield from _exchanges(context)
    yield from _eight_bit_moments(context)


def _eight_bit_moments(context: StageContext) -> Iterator[Tensor]:
    """Our trainer's 8-bit AdamW makes numbers of its moments and codes of these again, a piece at a time."""
    recipe = context.plan.recipe
    if not context.is_native_engine or not OPTIMIZERS[recipe.optimizer].is_8bit:
        return
    widest = largest(context.trained(unit).largest_matrix for unit in context.held_units)
    num_bytes = EIGHT_BIT_PIECE_BYTES * least(EIGHT_BIT_PIECE_ELEMENTS, widest) * (recipe.offload == "none")
    step = context.timeline.optimizer
    yield tensor("8-bit moments as numbers", "temporaries", num_bytes, step, step)


def _replicated(context: StageContext) -> Iterator[Tensor]:
    """Data parallel without parameter sharding: buckets, cached low-precision weights, ZeRO-1/2 staging."""
    timeline, states = context.timeline, context.states
    elements = sum(trainable_elements(context, unit) * unit.count for unit in context.held_units)
    yield from present(context.is_autocast, _autocast_copies(context))
    if context.profile.sharding == "deepspeed":
        # ZeRO's flat buffers are allocated whatever the number of ranks.
        bucket = least(context.profile.bucket.num_elements, elements) * states.reduce_bytes
        yield tensor(
            "reduce buckets", "communication_buffers", 2 * bucket, timeline.head_backward, timeline.backward_end
        )
        yield tensor("all-gather bucket", "communication_buffers", bucket, timeline.optimizer, timeline.optimizer)
    elif context.profile.ddp_copies_gradients:
        copy = elements * states.gradient_bytes * (context.is_distributed_data_parallel & (context.zero_stage <= 1))
        yield tensor("DDP gradient buckets", "communication_buffers", copy, 0, timeline.last)
    elif context.is_native_engine:
        # Gradients that no micro-batch has sent yet are tensors of their own beside DDP's buckets (traced).
        adds_up = context.is_distributed_data_parallel & (context.plan.num_microbatches > 1)
        copy = elements * states.gradient_bytes * adds_up
        yield tensor("gradients beside their buckets", "gradients", copy, timeline.forward, timeline.backward_end)


def _autocast_copies(context: StageContext) -> Iterator[Tensor]:
    """Low-precision copies of fp32 weights: cached until forward ends, and kept by the graph until a block's backward.

    A recomputed block casts its weights again while it runs backward. A compiled one casts inside its graph, which
    autocast does not cache (torch 2.13 ``_functorch/_aot_autograd``, ``disable_autocast_cache``).
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
        cached = recomputed * copies * (not context.plan.recipe.compile)
        yield tensor(name, "gathered_parameters", cached, timeline.forward, cached_until)
        for moment in moments.inside:
            yield tensor(name, "gathered_parameters", copies * (recomputed > 0), moment, moment)
        yield tensor(name, "gathered_parameters", most(0, kept - 1) * copies, timeline.forward, moments.first_backward)
        yield tensor(name, "gathered_parameters", copies * (kept > 0), timeline.forward, moments.last_backward)


def _dequantised_weights(context: StageContext) -> Iterator[Tensor]:
    """The matrix of a 4-bit block that is multiplied."""
    timeline, compute = context.timeline, context.states.compute_bytes
    if context.plan.recipe.adapter == "qlora":
        widest = largest(unit.base.largest_matrix for unit in context.held_units if unit.is_block)
        for moments in timeline.runs:
            yield tensor(
                "dequantised weight", "temporaries", compute * widest, moments.first_backward, moments.last_backward
            )


def _weight_gradients(context: StageContext) -> Iterator[Tensor]:
    """Whole-tensor gradients on their way into an accumulation buffer."""
    timeline, compute = context.timeline, context.states.compute_bytes
    adds_up = context.has_persistent_gradients | (context.plan.num_microbatches > 1)
    keeps_placeholders = context.profile.keeps_dummy_weight_gradients
    if keeps_placeholders:
        # One placeholder per matrix shape, cached for the whole run (TransformerEngine ``get_dummy_wgrad``).
        blocks = {id(unit.base): unit.base for unit in context.held_units if unit.is_block}
        elements = _sum_of_distinct([base.matrices for base in blocks.values()])
        yield tensor("placeholder weight gradients", "temporaries", compute * elements, 0, timeline.last)
    else:
        # A gradient is made whole before it is added, or cast to fp32; otherwise it becomes the gradient itself.
        widest = largest(unit.base.largest_matrix for unit in context.held_units if unit.is_block)
        whole = compute * widest * (adds_up | context.is_autocast)
        for first_use, last_use in timeline.spans_of_backward:
            yield tensor("weight gradient", "temporaries", whole, first_use, last_use)
    if context.profile.is_torch and not context.is_native_engine:
        # DTensor's row-wise embedding leaves the whole table's gradient on every rank until the optimizer (traced).
        others = (context.plan.layout.tp - 1) * context.embedding_elements * context.states.gradient_bytes
        yield tensor("whole embedding gradient", "gradients", others, timeline.backward_end, timeline.optimizer)
    head = compute * context.head_elements * (keeps_placeholders | adds_up | context.is_autocast)
    yield tensor("head weight gradient", "temporaries", head, timeline.head_backward, timeline.head_backward)
    end, states = timeline.backward_end, context.states
    each = states.compute_bytes if context.profile.has_persistent_gradients else states.weight_bytes
    table = each * context.embedding_elements * (keeps_placeholders | adds_up)
    yield tensor("embedding gradient", "temporaries", table, end, end)


def _sum_of_distinct(values: Sequence[int]) -> int:
    """The sum of some numbers, of equal ones only the first."""
    total = 0
    for position, value in enumerate(values):
        is_new = True
        for earlier in values[:position]:
            is_new = is_new & (value != earlier)
        total = total + value * is_new
    return total


def received_messages(context: StageContext) -> int:
    """Messages of the pipeline with a buffer: two, or under torch's stages one for every micro-batch and direction.

    Source: torch ``distributed/pipelining/stage.py`` (``_setup_forward_recv_info``).
    """
    if not context.is_native_engine:
        return 2
    held = context.held
    directions = 2 * held.num_chunks - held.has_embedding - held.has_head
    return context.plan.num_microbatches * directions


def _exchanges(context: StageContext) -> Iterator[Tensor]:
    """Buffers of tensor, context, expert and pipeline exchanges while a block runs."""
    layout, timeline, block = context.plan.layout, context.timeline, context.block_context
    hidden = block.tokens * block.hidden_size * block.element_bytes
    for run, held in enumerate(context.held_runs):
        layer, num_bytes = held.layer, 0.0 + hidden * (layout.tp > 1)
        if isinstance(layer.mixer, AttentionSpec):
            heads = most(1.0, layer.mixer.num_key_value_heads / layout.tp)
            keys = 4 * block.tokens * heads * layer.mixer.head_dim * block.element_bytes
            num_bytes = num_bytes + keys * (layout.cp > 1)
        if isinstance(layer.feed_forward, MoeSpec):
            routed = 2 * hidden * layer.feed_forward.num_experts_per_tok / block.sequence_shards
            num_bytes = num_bytes + routed * (layout.ep > 1)
        moments = timeline.runs[run]
        for moment in moments.inside:
            yield tensor("exchange buffers", "communication_buffers", num_bytes, moment, moment)
    boundary: Bytes = received_messages(context) * hidden // block.sequence_shards * (layout.pp > 1)
    yield tensor(
        "pipeline send and receive", "communication_buffers", boundary, timeline.forward, timeline.backward_end
    )

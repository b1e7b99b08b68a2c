"""Gathered parameters, communication buffers and other transients of a stage as tensors of the inventory."""

from collections.abc import Iterator

from shardwise.ledger import MemoryComponent
from shardwise.model import AttentionSpec, MoeSpec
from shardwise.step.inventory import Tensor
from shardwise.step.stage_context import StageContext, Unit
from shardwise.units import MIB, Bytes

LIBRARY_WORKSPACE_BYTES = 64 * MIB
"""cuBLAS and cuBLASLt workspaces inside torch's allocator (32 MiB each on Hopper: torch ``CUDABlas.cpp``)."""

DEEPSPEED_BUCKET_ELEMENTS = 500_000_000
DEEPSPEED_LIVE_ELEMENTS = 1_000_000_000
DEEPSPEED_PREFETCH_ELEMENTS = 50_000_000
"""DeepSpeed ``runtime/zero/config.py`` defaults: bucket sizes and live parameters."""


def buffer_tensors(context: StageContext) -> Iterator[Tensor]:
    """All transients that belong to the engine's way of sharding and communicating."""
    yield _tensor("library workspaces", "temporaries", LIBRARY_WORKSPACE_BYTES, 0, context.timeline.last)
    if context.gathers_parameters and context.profile.sharding == "deepspeed":
        yield from _zero_3(context)
    elif context.gathers_parameters:
        yield from _fully_sharded(context)
    else:
        yield from _replicated(context)
    yield from _weight_gradients(context)
    yield from _exchanges(context)


def _tensor(name: str, component: MemoryComponent, num_bytes: float, born: int, dies: int) -> Tensor:
    return Tensor(name=name, component=component, num_bytes=round(num_bytes), born=born, dies=dies)


def _trainable_elements(context: StageContext, unit: Unit) -> int:
    return unit.adapter.full if context.has_adapter else unit.base.full


def _fully_sharded(context: StageContext) -> Iterator[Tensor]:
    """Units gathered for computing and gradients waiting for their reduce-scatter.

    FSDP2 holds, in forward, a unit's parameters and two flat all-gather outputs; in backward its parameters, the
    prefetched flat gather of the next unit, whole gradients and up to two reduce-scatter inputs. In a pipeline every
    stage keeps its blocks gathered and accumulates whole gradients in the reduce dtype until the last micro-batch.

    Source: torch 2.11 ``distributed/pipelining/stage.py`` (``backward_maybe_with_nosync``) and
        ``distributed/fsdp/_fully_shard/`` (``_fsdp_param_group.py``, ``_fsdp_collectives.py``).
    """
    timeline, states = context.timeline, context.states
    compute, reduce = states.compute_bytes, states.reduce_bytes
    is_fsdp2 = context.profile.sharding == "fsdp2"
    keeps_gathered = not context.plan.layout.reshard_after_forward or context.plan.layout.pp > 1
    blocks = [unit for unit in context.units if unit.is_block]
    largest = max((context.gathered_bytes(unit) for unit in blocks), default=0)
    if keeps_gathered:
        total = sum(context.gathered_bytes(unit) * unit.count for unit in blocks)
        yield _tensor("gathered blocks", "gathered_parameters", total, timeline.forward, timeline.backward_end)
        if context.plan.layout.pp > 1:
            trained = sum(_trainable_elements(context, unit) * unit.count for unit in context.units)
            accumulated = reduce * trained
            yield _tensor("whole gradients", "gradients", accumulated, timeline.forward, timeline.backward_end)
    else:
        copies = 3 if is_fsdp2 else 2
        yield _tensor(
            "gathered blocks (forward)",
            "gathered_parameters",
            copies * largest,
            timeline.forward,
            timeline.forward,
        )
        if timeline.loss_backward > timeline.forward:
            last = timeline.head_backward
            yield _tensor("gathered last block", "gathered_parameters", largest, timeline.loss_forward, last)
    for unit in blocks:
        moments = timeline.runs[unit.run]
        trained = _trainable_elements(context, unit)
        for moment in (moments.first_backward, moments.last_backward):
            if not keeps_gathered:
                yield _tensor(
                    "gathered and prefetched block",
                    "gathered_parameters",
                    2 * context.gathered_bytes(unit),
                    moment,
                    moment,
                )
            inputs = 2 if is_fsdp2 else 1
            waiting = (compute + inputs * reduce) * trained
            yield _tensor("gradients being reduced", "communication_buffers", waiting, moment, moment)
    yield from _root_unit(context, compute, reduce)


def _root_unit(context: StageContext, compute: int, reduce: int) -> Iterator[Tensor]:
    """Embedding and head: gathered for the whole step, their gradients reduced when backward ends."""
    timeline = context.timeline
    for unit in context.units:
        if unit.is_block:
            continue
        elements = unit.base.full
        yield _tensor(
            "gathered embedding and head",
            "gathered_parameters",
            compute * elements,
            timeline.forward,
            timeline.backward_end,
        )
        if not context.has_adapter:
            head = context.head_elements
            yield _tensor(
                "head gradient", "communication_buffers", compute * head, timeline.head_backward, timeline.backward_end
            )
            waiting = compute * (elements - head) + reduce * elements
            yield _tensor(
                "embedding gradients being reduced",
                "communication_buffers",
                waiting,
                timeline.backward_end,
                timeline.backward_end,
            )


def _zero_3(context: StageContext) -> Iterator[Tensor]:
    """DeepSpeed ZeRO-3: up to a fixed number of gathered elements stay alive, and flat buckets for gradients.

    Source: DeepSpeed ``runtime/zero/config.py`` and ``partitioned_param_coordinator.py``.
    """
    timeline, states = context.timeline, context.states
    whole = sum(unit.base.full * unit.count for unit in context.units)
    trained = sum(_trainable_elements(context, unit) * unit.count for unit in context.units)
    live = min(whole, DEEPSPEED_LIVE_ELEMENTS + DEEPSPEED_PREFETCH_ELEMENTS) * states.compute_bytes
    buckets = 2 * min(DEEPSPEED_BUCKET_ELEMENTS, trained) * states.reduce_bytes
    end = timeline.backward_end
    yield _tensor("gathered live parameters", "gathered_parameters", live, timeline.forward, end)
    yield _tensor("reduce buckets", "communication_buffers", buckets, timeline.loss_backward, end)


def _replicated(context: StageContext) -> Iterator[Tensor]:
    """Data parallel without parameter sharding: buckets, cached low-precision weights, ZeRO-1/2 staging."""
    timeline, states = context.timeline, context.states
    elements = sum(_trainable_elements(context, unit) * unit.count for unit in context.units)
    if context.is_autocast:
        yield from _autocast_copies(context)
    if context.profile.sharding == "deepspeed":
        # ZeRO's flat buffers are allocated whatever the number of ranks.
        bucket = min(DEEPSPEED_BUCKET_ELEMENTS, elements) * states.reduce_bytes
        yield _tensor(
            "reduce buckets", "communication_buffers", 2 * bucket, timeline.head_backward, timeline.backward_end
        )
        yield _tensor("all-gather bucket", "communication_buffers", bucket, timeline.optimizer, timeline.optimizer)
    elif context.plan.layout.data_parallel_size == 1:
        return
    elif context.profile.ddp_copies_gradients and context.zero_stage <= 1:
        copy = elements * states.gradient_bytes
        yield _tensor("DDP gradient buckets", "communication_buffers", copy, 0, timeline.last)
    elif context.profile.bucket_bytes:
        bucket = min(2 * context.profile.bucket_bytes, elements * states.reduce_bytes)
        yield _tensor("DDP buckets in flight", "communication_buffers", bucket, timeline.forward, timeline.backward_end)


def _autocast_copies(context: StageContext) -> Iterator[Tensor]:
    """Low-precision copies of fp32 weights: cached until forward ends, and kept by the graph until a block's backward.

    A recomputed block casts its weights again while it runs backward.
    """
    timeline, compute = context.timeline, context.states.compute_bytes
    name = "autocast weight copies"
    for unit in context.units:
        if not unit.is_block:
            head = compute * context.head_elements
            yield _tensor(name, "gathered_parameters", head, timeline.forward, timeline.head_backward)
            continue
        moments = timeline.runs[unit.run]
        copies = compute * unit.base.full
        recomputed = context.recomputed_layers(unit.count)
        kept = unit.count - recomputed
        cached_until = timeline.loss_forward
        yield _tensor(name, "gathered_parameters", recomputed * copies, timeline.forward, cached_until)
        if recomputed:
            for moment in (moments.first_backward, moments.last_backward):
                yield _tensor(name, "gathered_parameters", copies, moment, moment)
        if kept:
            yield _tensor(name, "gathered_parameters", (kept - 1) * copies, timeline.forward, moments.first_backward)
            yield _tensor(name, "gathered_parameters", copies, timeline.forward, moments.last_backward)


def _weight_gradients(context: StageContext) -> Iterator[Tensor]:
    """Whole-tensor gradients on their way into an accumulation buffer."""
    timeline, compute = context.timeline, context.states.compute_bytes
    if context.plan.recipe.adapter == "qlora":
        largest = max((unit.base.largest_matrix for unit in context.units if unit.is_block), default=0)
        for moments in timeline.runs:
            yield _tensor(
                "dequantised weight", "temporaries", compute * largest, moments.first_backward, moments.last_backward
            )
    if context.has_adapter or context.gathers_parameters:
        return
    accumulates = context.profile.has_persistent_gradients or context.plan.num_microbatches > 1
    if context.profile.keeps_dummy_weight_gradients:
        # One placeholder per matrix shape, cached for the whole run (TransformerEngine ``get_dummy_wgrad``).
        shapes = {unit.base.matrices for unit in context.units if unit.is_block}
        yield _tensor("placeholder weight gradients", "temporaries", compute * sum(shapes), 0, timeline.last)
    elif accumulates or context.is_autocast:
        # A gradient is made whole before it is added, or cast to fp32; otherwise it becomes the gradient itself.
        largest = max((unit.base.largest_matrix for unit in context.units if unit.is_block), default=0)
        for moments in timeline.runs:
            yield _tensor(
                "weight gradient", "temporaries", compute * largest, moments.first_backward, moments.last_backward
            )
    if context.profile.keeps_dummy_weight_gradients or accumulates or context.is_autocast:
        head = compute * context.head_elements
        yield _tensor("head weight gradient", "temporaries", head, timeline.head_backward, timeline.head_backward)
    if context.profile.keeps_dummy_weight_gradients or accumulates:
        table = (
            context.states.compute_bytes if context.profile.has_persistent_gradients else context.states.weight_bytes
        )
        end = timeline.backward_end
        yield _tensor("embedding gradient", "temporaries", table * context.embedding_elements, end, end)


def _exchanges(context: StageContext) -> Iterator[Tensor]:
    """Buffers of tensor, context, expert and pipeline exchanges while a block runs."""
    layout, timeline, block = context.plan.layout, context.timeline, context.block_context
    hidden = block.tokens * block.hidden_size * block.element_bytes
    for run, (layer, _) in enumerate(context.layer_runs):
        num_bytes: float = 0
        if layout.tp > 1:
            num_bytes += hidden
        if layout.cp > 1 and isinstance(layer.mixer, AttentionSpec):
            heads = max(1.0, layer.mixer.num_key_value_heads / layout.tp)
            num_bytes += 4 * block.tokens * heads * layer.mixer.head_dim * block.element_bytes
        if layout.ep > 1 and isinstance(layer.feed_forward, MoeSpec):
            num_bytes += 2 * hidden * layer.feed_forward.num_experts_per_tok / block.sequence_shards
        moments = timeline.runs[run]
        for moment in (moments.first_backward, moments.last_backward):
            yield _tensor("exchange buffers", "communication_buffers", num_bytes, moment, moment)
    if layout.pp > 1:
        boundary: Bytes = 2 * hidden // block.sequence_shards
        yield _tensor(
            "pipeline send and receive", "communication_buffers", boundary, timeline.forward, timeline.backward_end
        )

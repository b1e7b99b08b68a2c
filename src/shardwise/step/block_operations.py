"""Operations that one block computes for one micro-batch, forward and backward."""

from collections.abc import Iterator
from dataclasses import replace

from shardwise.model import AttentionSpec, DenseSpec, LayerSpec, MambaSpec, MoeSpec, Weight
from shardwise.recipe import Recipe
from shardwise.step import eager_operations, own_host
from shardwise.step.attention_operations import attention_operations
from shardwise.step.expert_operations import PLAIN_DISPATCH_CALLS, routed_operations
from shardwise.step.held_weights import adapter_weights
from shardwise.step.inventory import Operation
from shardwise.step.matmul_operations import LocalMatrix, joined, local_experts, local_matrix, matrix_operations
from shardwise.step.operation_context import OperationContext
from shardwise.step.sequence_copies import sequence_copies

FUSED_NORM_BYTES = (4, 12)
"""Bytes per element in 16 bits, forward and backward, at the rate of a copy: read and write once; backward counts 10
and takes as long as 12 on H100 (``catalog/kernels/h100-sxm.csv``)."""
DECOMPOSED_NORM_BYTES = (36, 93)
"""Bytes per element of RMSNorm as separate casts, squares, means and products in fp32: forward counted kernel by
kernel, backward as long as 93 bytes take at the rate of a copy (same file)."""
RESIDUAL_BYTES = (6, 6)
"""Bytes per element in 16 bits: read two, write one."""
ROTARY_BYTES = 4
DECOMPOSED_ROTARY_BYTES = 16
"""Bytes per element of rotate-half as negation, concatenation, two products and a sum."""
GATED_BYTES = (6, 10)
DECOMPOSED_GATED_BYTES = (10, 16)
ACTIVATION_BYTES = (4, 6)
"""Bytes per element of the feed-forward width in 16 bits."""
FP8_CAST_BYTES = 5
"""Bytes per element of a cast to 8 bits: largest value (read 16 bits), then read again and write 8: 2 and 2.6 bytes at
the rate of a copy, compiled, on H100 (``2026-11-28-h100-products.csv``). torch keeps the 16-bit input and casts it
again for the weight gradient (3)."""
FP8_RECAST_BYTES = 3
FP8_TRANSPOSED_CAST_BYTES = 4
"""Bytes per element of Transformer Engine's cast with the transposed copy, scaled by what it saw before: read 16 bits,
write 8 twice. Its norms write 8 bits themselves, and weights are cast once per step."""
TILE_CAST_BYTES = 3
"""Bytes per element of a cast to 8 bits with a scale for 128 numbers: read 16 bits, write 8. Inputs are cast along
their rows for the product, and along their columns for the weight gradient, read in 8 bits again; gradients are cast
both ways, and weights transposed, for every micro-batch (arXiv:2412.19437, section 3.3.2, and the kernels of the trace
that :mod:`shardwise.predict.concurrency` names)."""
TRANSPOSED_8_BIT_BYTES = 2
QUANTISED_READ_BYTES = 2.5
"""Bytes per dequantised element: read 4 bits with scales, write 16."""
SCAN_BYTES = (20, 40)
"""Selective scan and its convolution per element of the inner width in 16 bits: about ten tensors read or written
forward, twice that backward (Gu and Dao 2023, arXiv:2312.00752, section 3.3.2: the scan is bound by memory)."""
REPEATED_BYTES = (2, 2)
"""Bytes an element of repeated keys and values: written, and their gradients read to be added up."""
REPEATED_KERNELS = (2, 2)
FUSED_KERNELS = (1, 2)
"""Kernels of a fused norm, forward and backward, counted on H100 (``2026-11-28-h100-dispatch.csv``)."""
DECOMPOSED_NORM_KERNELS = (8, 16)
DECOMPOSED_ROTARY_KERNELS = (6, 8)
FUSED_ROTARY_KERNELS = (2, 2)
DECOMPOSED_GATED_KERNELS = (2, 3)
AUTOCAST_BYTES = (6, 18)
"""Bytes of every input that eager autocast casts for a matrix of its own, forward and backward: read in fp32 and
written in 16 bits; its gradient cast back, and added in fp32 to that of the other readers."""
AUTOCAST_KERNELS = (10, 13)
"""Casts that autocast adds to a block (same file)."""
TENSOR_PARALLEL_KERNELS = 2
"""Host time of one collective call, 30 to 50 us on H100 with Python around it, in kernels; four calls a block and
direction."""
HOST_CALLS = "host calls"
"""The operation that stands for what the host does around the kernels of a block."""
GATHERED_HOST_CALLS = "host calls, gathered"
"""The operation for what the host does around a block that is gathered and reduced as a unit of its own."""
DELTA_RULE_KERNELS = (6, 10)
"""Kernels of the gated delta rule, forward and backward, counted in the calls of fla-org/flash-linear-attention@0315a70
``fla/ops/gated_delta_rule/chunk.py``, read on 2026-11-30: six forward (sums of gates, products of keys, their inverse,
weighted keys and values, states, outputs); seven backward, of which two make weights and states again, the sum over
blocks of keys in ``chunk_bwd_dqkwg`` (@0781576 ``fla/ops/common/chunk_o.py``) and two additions of gradients."""
DROPOUT_BYTES = 5
"""Bytes per 16-bit element, forward and backward: read, write and a byte of mask; a fused kernel adds only the mask."""
SCAN_FLOP_PER_STATE = 9
"""FLOP per token, channel and state, forward (Gu and Dao 2023; the convention of their FLOP counts)."""


def block_operations(layer: LayerSpec, context: OperationContext, recipe: Recipe) -> tuple[Operation, ...]:
    """Forward and backward operations of one block for one micro-batch, in forward order."""
    operations = [*_norms(layer, context)]
    operations += _matrices(layer, context)
    if recipe.adapter != "none":
        operations += _adapters(layer, context, recipe)
    operations += _mixers(layer, context)
    operations += _feed_forward(layer, context)
    operations += _autocast(layer, context)
    operations += fp8_casts(operations, layer, context)
    operations += sequence_copies(layer, context)
    operations += _host_calls(layer, context, recipe)
    return tuple(operations)


def _matrices(layer: LayerSpec, context: OperationContext) -> Iterator[Operation]:
    is_trained = not context.is_base_frozen
    matrices = _local_matrices(layer, context)
    for matrix in joined(matrices) if context.joins_projections else matrices:
        yield from matrix_operations(matrix, context, is_trained=is_trained)
    biases = sum(_bias_elements(weight, context) for weight in layer.weights if weight.role == "bias")
    if biases and is_trained:
        num_biases = sum(weight.role == "bias" for weight in layer.weights)
        yield context.memory_operation(
            "bias gradients", "backward", biases * context.element_bytes, num_kernels=num_biases
        )


def _local_matrices(layer: LayerSpec, context: OperationContext) -> Iterator[LocalMatrix]:
    for weight in layer.weights:
        if weight.is_matrix and weight.is_expert and isinstance(layer.feed_forward, MoeSpec):
            yield local_experts(weight, layer.feed_forward, context)
        elif weight.is_matrix:
            yield local_matrix(weight, context)


def _bias_elements(weight: Weight, context: OperationContext) -> int:
    shards = 1 if weight.split == "replicated" else context.layout.tp
    return context.tokens * weight.shape[-1] // shards


def _adapters(layer: LayerSpec, context: OperationContext, recipe: Recipe) -> Iterator[Operation]:
    """LoRA's thin products, and for QLoRA the base weights expanded to 16 bits in forward and in backward."""
    factor_context = eager_operations.of_factors(context)
    for weight in adapter_weights(layer, rank=recipe.lora_rank, targets=recipe.lora_targets):
        yield from matrix_operations(local_matrix(weight, factor_context), factor_context, is_trained=True)
    if context.is_own_eager or (context.adapted_input_bytes and not context.is_compiled):
        yield from eager_operations.adapter_sums(layer, context, recipe)
    if context.is_quantised and context.is_own_eager:
        yield from eager_operations.unpacking(layer, context)
    elif context.is_quantised:
        elements = sum(weight.num_params for weight in layer.weights if weight.is_matrix) / context.layout.tp
        yield context.memory_operation("dequantise", "forward", elements * QUANTISED_READ_BYTES)
        yield context.memory_operation("dequantise.backward", "backward", elements * QUANTISED_READ_BYTES)


def _host_calls(layer: LayerSpec, context: OperationContext, recipe: Recipe) -> Iterator[Operation]:
    """Operations that stand for host work around the kernels of a block, forward and backward."""
    forward, backward = (sum(calls) for calls in zip(*_calls_around(layer, context, recipe), strict=True))
    name = host_calls_name(context)
    if forward:
        yield context.memory_operation(name, "forward", 0, num_kernels=forward)
    if backward:
        yield context.memory_operation(f"{name}.backward", "backward", 0, num_kernels=backward)


def _calls_around(layer: LayerSpec, context: OperationContext, recipe: Recipe) -> Iterator[tuple[int, int]]:
    """Calls forward and backward for casts, gradients added, experts' rows, gathering, tensor parallelism, adapters."""
    yield context.engine_calls
    if context.is_autocast:
        yield AUTOCAST_KERNELS
    if context.adds_gradients and not context.is_base_frozen:
        yield 0, len(layer.weights)
    if context.has_plain_dispatcher and isinstance(layer.feed_forward, MoeSpec):
        yield PLAIN_DISPATCH_CALLS
    if context.is_gathered:  # by FSDP2, whoever calls it
        yield own_host.UNIT_CALLS
    if context.has_own_host:
        yield own_host.block_calls(context.layout, is_gathered=context.is_gathered, has_units=context.has_units)
    elif context.layout.tp > 1:
        yield _tensor_calls(context)
    if context.is_own_eager:
        adapted, packed = eager_operations.adapted_and_packed(layer, recipe)
        yield own_host.adapter_calls(adapted=adapted, packed=packed)


def host_calls_name(context: OperationContext) -> str:
    """Name under which the host's work on a block is counted."""
    return GATHERED_HOST_CALLS if context.is_gathered else HOST_CALLS


def _tensor_calls(context: OperationContext) -> tuple[int, int]:
    if context.has_torch_host:
        return own_host.tensor_calls(computes_on_parts=context.is_compiled)
    calls = (4 if context.sequence_shards > 1 else 2) * TENSOR_PARALLEL_KERNELS
    return calls, calls


def _both(
    name: str,
    elements: float,
    bytes_per_element: tuple[float, float],
    context: OperationContext,
    *,
    kernels: tuple[int, int] = (1, 1),
    element_bytes: int = 0,
) -> tuple[Operation, Operation]:
    """A memory-bound operation and its backward; bytes are for 16-bit elements and scale with the element.

    ``element_bytes`` is that of the residual stream, where the operation works on it.
    """
    scale = (element_bytes or context.element_bytes) / 2
    forward, backward = bytes_per_element
    return context.memory_operations(name, (elements * forward * scale, elements * backward * scale), kernels)


def _norms(layer: LayerSpec, context: OperationContext) -> Iterator[Operation]:
    is_fused = context.has_fused_norm or layer.norm == "layernorm"
    per_element = FUSED_NORM_BYTES if is_fused else DECOMPOSED_NORM_BYTES
    forward, backward = FUSED_KERNELS if is_fused else DECOMPOSED_NORM_KERNELS
    wide = 0 if context.is_compiled else context.residual_bytes
    if layer.num_norms:
        kernels = (layer.num_norms * forward, layer.num_norms * backward)
        elements = layer.num_norms * context.residual_elements
        width = wide if is_fused else 0
        yield from _both("norms", elements, per_element, context, kernels=kernels, element_bytes=width)
    branches = (layer.mixer is not None) + (layer.feed_forward is not None) + (layer.cross_attention is not None)
    elements, kernels = branches * context.residual_elements, (branches, branches)
    yield from _both("residuals", elements, RESIDUAL_BYTES, context, kernels=kernels, element_bytes=wide)
    if context.hidden_dropout:
        moved = 1 if context.has_fused_dropout else DROPOUT_BYTES
        yield from _both("dropout", elements, (moved, moved), context, kernels=kernels)


def _autocast(layer: LayerSpec, context: OperationContext) -> Iterator[Operation]:
    """Casts of the fp32 inputs of a block's matrices, which a compiler makes part of other kernels."""
    if not context.is_autocast or context.is_compiled:
        return
    readers = sum(weight.is_matrix and weight.split == "column" for weight in layer.weights)
    elements = readers * context.residual_elements
    forward, backward = AUTOCAST_BYTES
    yield from context.memory_operations("autocast", (forward * elements, backward * elements), (0, 0))


def _mixers(layer: LayerSpec, context: OperationContext) -> Iterator[Operation]:
    if isinstance(layer.mixer, AttentionSpec):
        yield from _attention("attention", layer.mixer, context)
    elif isinstance(layer.mixer, MambaSpec):
        inner = context.tokens * layer.mixer.intermediate_size / context.layout.tp
        flop = SCAN_FLOP_PER_STATE * inner * layer.mixer.state_size
        if layer.mixer.is_delta_rule:
            yield from _delta_rule(flop, context)
            flop = 0.0
        scale = context.element_bytes / 2
        forward, backward = SCAN_BYTES
        yield context.memory_operation("scan", "forward", inner * forward * scale, flop=flop)
        yield context.memory_operation("scan.backward", "backward", inner * backward * scale, flop=2 * flop)
    if layer.cross_attention is not None:
        yield from _attention("cross_attention", layer.cross_attention, context)


def _delta_rule(flop: float, context: OperationContext) -> Iterator[Operation]:
    """The kernels of a gated delta rule, beside which convolution, gates and norm move what a scan moves."""
    forward, backward = DELTA_RULE_KERNELS
    for plain in (
        context.memory_operation("delta_rule", "forward", 0, flop=flop, num_kernels=forward),
        context.memory_operation("delta_rule.backward", "backward", 0, flop=2 * flop, num_kernels=backward),
    ):
        yield replace(plain, kind="delta_rule", m=context.tokens)


def _attention(name: str, spec: AttentionSpec, context: OperationContext) -> Iterator[Operation]:
    heads = (spec.num_attention_heads + spec.num_key_value_heads) / context.layout.tp
    elements = context.tokens * heads * spec.head_dim
    if spec.has_qk_norm:
        per_element = FUSED_NORM_BYTES if context.has_fused_norm else DECOMPOSED_NORM_BYTES
        forward, backward = FUSED_KERNELS if context.has_fused_norm else DECOMPOSED_NORM_KERNELS
        yield from _both(f"{name}.qk_norm", elements, per_element, context, kernels=(2 * forward, 2 * backward))
    if spec.has_rotary:
        per_element_bytes = ROTARY_BYTES if context.has_fused_rotary else DECOMPOSED_ROTARY_BYTES
        kernels = FUSED_ROTARY_KERNELS if context.has_fused_rotary else DECOMPOSED_ROTARY_KERNELS
        per_element = (per_element_bytes, per_element_bytes)
        yield from _both(f"{name}.rotary", elements, per_element, context, kernels=kernels)
    yield from _repeated_heads(name, spec, context)
    yield from attention_operations(name, spec, context)


def _repeated_heads(name: str, spec: AttentionSpec, context: OperationContext) -> Iterator[Operation]:
    """Keys and values written for every head of queries, and the pieces that context parallelism merges."""
    tokens, layout = context.tokens, context.layout
    outputs = tokens * spec.num_attention_heads / layout.tp
    are_repeated = context.repeats_kv_heads and spec.num_key_value_heads < spec.num_attention_heads
    keys = outputs if are_repeated else tokens * spec.num_key_value_heads / layout.tp
    both = spec.head_dim + spec.v_head_dim
    if are_repeated:
        yield from _both(f"{name}.repeated_heads", keys * both, REPEATED_BYTES, context, kernels=REPEATED_KERNELS)
    if context.merged_bytes is not None:
        merged, pieces = context.merged_bytes, layout.cp - 1
        forward = merged.outputs * outputs * spec.v_head_dim
        backward = merged.queries * outputs * spec.head_dim + merged.keys * keys * both
        kernels = (pieces * merged.kernels[0], pieces * merged.kernels[1])
        yield from context.memory_operations(f"{name}.merged_pieces", (pieces * forward, pieces * backward), kernels)


def _feed_forward(layer: LayerSpec, context: OperationContext) -> Iterator[Operation]:
    block = layer.feed_forward
    if isinstance(block, DenseSpec):
        width = context.tokens * block.intermediate_size / context.layout.tp
        per_element = _activation_bytes(block.is_gated, context)
        yield from _both("mlp.activation", width, per_element, context, kernels=_activation_kernels(block, context))
    elif isinstance(block, MoeSpec):
        per_element = _activation_bytes(block.is_gated, context)
        kernels = _activation_kernels(block, context)
        yield from routed_operations(block, context, per_element, kernels)
        if block.shared_intermediate_size:
            width = context.tokens * block.shared_intermediate_size / context.layout.tp
            yield from _both("shared_experts.activation", width, per_element, context, kernels=kernels)


def _activation_kernels(block: DenseSpec | MoeSpec, context: OperationContext) -> tuple[int, int]:
    return DECOMPOSED_GATED_KERNELS if block.is_gated and not context.has_fused_activation else (1, 1)


def _activation_bytes(is_gated: bool, context: OperationContext) -> tuple[float, float]:
    if not is_gated:
        return ACTIVATION_BYTES
    return GATED_BYTES if context.has_fused_activation else DECOMPOSED_GATED_BYTES


def fp8_casts(operations: list[Operation], layer: LayerSpec, context: OperationContext) -> Iterator[Operation]:
    """Casts of inputs, weights and output gradients to 8 bits, where nothing else writes them so.

    Under FSDP each rank casts its shard of the weights before gathering, which is left out.
    """
    if context.matmul_dtype != "fp8":
        return
    scaled = [operation for operation in operations if operation.dtype == "fp8" and operation.k]
    if context.is_own_eager:
        yield from eager_operations.rounding(scaled, context)
        return
    # A product's input has flop / 2n elements and its weight flop / 2m, whatever the number of experts.
    forwards = [op for op in scaled if op.phase == "forward"]
    if context.scales_tiles:
        forward, backward = _tile_casts(scaled, layer)
    elif context.joins_projections:
        gradients = sum(op.flop / 2 / op.n for op in scaled if op.name.endswith(".dgrad"))
        cast = sum(op.flop / 2 / op.n for op in forwards if op.kind == "grouped_matmul" or _is_row_split(op, layer))
        forward, backward = FP8_TRANSPOSED_CAST_BYTES * cast, FP8_TRANSPOSED_CAST_BYTES * gradients
    else:
        # Compiled code casts an input once for all that read it; under tensor parallelism before it is gathered.
        shards = context.sequence_shards
        columns = {(op.name.rpartition(".")[0], op.k): op for op in forwards if not _is_row_split(op, layer)}
        inputs = sum(op.flop / 2 / op.n / shards for op in columns.values())
        inputs += sum(op.flop / 2 / op.n for op in forwards if _is_row_split(op, layer))
        gradients = sum(_output_gradients(op, layer, shards) for op in scaled if op.name.endswith(".dgrad"))
        weights = 0.0 if context.is_gathered else sum(op.flop / 2 / op.m for op in forwards)
        forward = FP8_CAST_BYTES * (inputs + weights)
        backward = FP8_CAST_BYTES * gradients + FP8_RECAST_BYTES * inputs
    kernels = sum(op.num_kernels for op in forwards)
    yield context.memory_operation("fp8 casts", "forward", forward, num_kernels=kernels)
    yield context.memory_operation("fp8 casts.backward", "backward", backward, num_kernels=kernels)


def _tile_casts(scaled: list[Operation], layer: LayerSpec) -> tuple[float, float]:
    """Bytes of casts by tiles, forward and backward; what experts read first was cast before it was sent to them."""
    forwards = [op for op in scaled if op.phase == "forward"]
    sent = [op for op in forwards if op.kind == "grouped_matmul" and not _is_row_split(op, layer)]
    own = {(op.name.rpartition(".")[0], op.k): op for op in forwards if op not in sent}
    inputs = sum(op.flop / 2 / op.n for op in own.values())
    read_again = inputs + sum(op.flop / 2 / op.n for op in sent) + sum(op.flop / 2 / op.m for op in forwards)
    gradients = sum(op.flop / 2 / op.n for op in scaled if op.name.endswith(".dgrad"))
    return TILE_CAST_BYTES * inputs, 2 * TILE_CAST_BYTES * gradients + TRANSPOSED_8_BIT_BYTES * read_again


def _is_row_split(operation: Operation, layer: LayerSpec) -> bool:
    """Whether nothing before the product could write its input in 8 bits."""
    return any(weight.split == "row" and weight.name.startswith(operation.name) for weight in layer.weights)


def _output_gradients(operation: Operation, layer: LayerSpec, shards: int) -> float:
    """Elements of the gradient that enters an input gradient's product, before it is gathered."""
    forward = replace(operation, name=operation.name.removesuffix(".dgrad"))
    return operation.flop / 2 / operation.n / (shards if _is_row_split(forward, layer) else 1)

"""Operations outside the blocks: embedding, final norm, head and loss of one micro-batch."""

from collections.abc import Iterator
from math import ceil

from shardwise.engines.profile import LossKind
from shardwise.model import Weight
from shardwise.step.inventory import Operation
from shardwise.step.loss import loss_kind, padded_rows
from shardwise.step.matmul_operations import LocalMatrix, matrix_operations
from shardwise.step.operation_context import OperationContext
from shardwise.step.stage_context import StageContext
from shardwise.units import Bytes

LOSS_BYTES: dict[LossKind, tuple[int, int]] = {
    "torch": (21, 22),
    "torch_parallel": (26, 26),
    "huggingface": (29, 22),
    "vocab_parallel": (34, 14),
    "vocab_parallel_upcast": (38, 14),
    "vocab_parallel_fused": (6, 4),
    "vocab_parallel_compiled": (30, 18),
    "fused_in_place": (6, 4),
    "fused": (6, 4),
    "fused_upcast": (12, 10),
}
"""Memory traffic per logit in 16 bits, forward and backward, at the rate of a copy.

torch casts to fp32 (6), reads twice and writes log-softmax (12), and its backward reads two and writes one in fp32,
then casts (18): they take as long as 21 and 22 bytes on H100 (``catalog/kernels/h100-sxm.csv``). The Hugging Face loss
copies the shifted fp32 logits once more (8). Megatron's vocabulary-parallel loss makes five fp32 passes; nanotron's
writes the shifted ones to a copy (4). Compiled, Megatron's casts as it looks for the largest (6), writes exponentials
beside the logits, copies them back (8 and 8) and divides (8); the gradient is written beside the softmax, copied back
(8 and 8) and cast (2). The fused
kernel reads twice and writes the gradient in place; behind an fp32 copy it casts first (6) and back (6)."""

MEGATRON_VOCAB_MULTIPLE = 128
"""Megatron pads its table to this many rows for every tensor-parallel rank (``--make-vocab-size-divisible-by``)."""

FUSED_LOSS_BYTES = (6, 4)
"""Memory traffic per logit of a fused head and loss, or of a compiled one: as the fused kernel above."""


def embedding_operations(context: StageContext, operation: OperationContext) -> Iterator[Operation]:
    """Looking up rows and adding their gradients into the table.

    The backward clears and writes the whole table's gradient (torch ``embedding_dense_backward``).
    """
    if not context.stage.has_embedding:
        return
    ranks = context.vocabulary_ranks
    rows = ranks * operation.tokens * operation.hidden_size * operation.residual_bytes
    if ranks > 1:
        yield from _spread_embedding(context, operation, rows)
        return
    yield operation.memory_operation("embedding", "forward", 2 * rows)
    if not operation.is_base_frozen:
        table = context.embedding_elements * operation.element_bytes
        yield operation.memory_operation("embedding.backward", "backward", 2 * rows + table)


def _spread_embedding(context: StageContext, operation: OperationContext, rows: Bytes) -> Iterator[Operation]:
    """Own rows for the tokens of all ranks: looked up in fp32, cast and masked; the gradient of the rows is cast back.

    Source: ``train/spread_vocabulary.py``, kernel by kernel.
    """
    ratio = context.states.weight_bytes // operation.residual_bytes
    yield operation.memory_operation("embedding", "forward", (3 * ratio + 3) * rows)
    table = context.embedding_elements // context.vocabulary_ranks
    cast = operation.element_bytes + context.states.gradient_bytes
    backward = 2 * rows + (operation.element_bytes + cast) * table
    yield operation.memory_operation("embedding.backward", "backward", backward)


def head_operations(context: StageContext, operation: OperationContext) -> Iterator[Operation]:
    """Final norm, output projection and cross-entropy."""
    plan, stage = context.plan, context.stage
    if not stage.has_head:
        return
    scale = operation.element_bytes / 2
    yield operation.memory_operation("final_norm", "forward", 4 * operation.residual_elements * scale)
    yield operation.memory_operation("final_norm.backward", "backward", 8 * operation.residual_elements * scale)
    if not plan.model.has_head:
        return
    matrix = _head_matrix(context, operation)
    yield from matrix_operations(matrix, operation, is_trained=not operation.is_base_frozen)
    yield from _spread_head(context, operation, matrix)
    forward, backward = _loss_bytes(context)
    logits = matrix.rows * matrix.out_features
    yield operation.memory_operation("loss", "forward", logits * forward * scale)
    yield operation.memory_operation("loss.backward", "backward", logits * backward * scale)


def _spread_head(context: StageContext, operation: OperationContext, matrix: LocalMatrix) -> Iterator[Operation]:
    """Casts of the rows and of their gradient, and the sum of what all ranks say of this rank's tokens."""
    if context.vocabulary_ranks == 1:
        return
    weights, states = matrix.out_features * matrix.in_features, context.states
    tokens = matrix.rows * matrix.in_features * operation.element_bytes
    yield operation.memory_operation("head.rows", "forward", (states.weight_bytes + states.compute_bytes) * weights)
    cast = (states.compute_bytes + states.gradient_bytes) * weights
    yield operation.memory_operation("head.sums", "backward", cast + tokens + 5 * tokens / context.vocabulary_ranks)


def _head_matrix(context: StageContext, operation: OperationContext) -> LocalMatrix:
    """The output projection: its own matrix, or the tied token table."""
    model = context.plan.model
    found: Weight | None = next((w for w in model.head_weights if len(w.shape) == 2), None)
    if found is None:
        found = next((w for w in model.embedding_weights if w.split == "vocab" and len(w.shape) == 2), None)
    vocab_size, hidden_size = found.shape if found is not None else (model.vocab_size, model.hidden_size)
    tp = context.plan.layout.tp
    if context.profile.sharding == "megatron":
        multiple = MEGATRON_VOCAB_MULTIPLE * tp
        vocab_size = ceil(vocab_size / multiple) * multiple
    rows = ceil(vocab_size / (tp * context.vocabulary_ranks))
    if context.is_native_engine:
        rows = padded_rows(rows)
    return LocalMatrix(
        name="head",
        kind="matmul",
        dtype=operation.core_dtype,
        rows=context.vocabulary_ranks * operation.tokens,
        out_features=rows,
        in_features=hidden_size,
    )


def _loss_bytes(context: StageContext) -> tuple[int, int]:
    recipe = context.plan.recipe
    kind = loss_kind(profile=context.profile, recipe=recipe, tp=context.plan.layout.tp)
    if kind == "vocab_parallel_compiled":
        return LOSS_BYTES[kind]
    if recipe.fused_loss or recipe.liger_kernels or (recipe.compile and kind == "torch"):
        return FUSED_LOSS_BYTES
    return LOSS_BYTES[kind]

"""Operations outside the blocks: embedding, final norm, head and loss of one micro-batch."""

from collections.abc import Iterator
from math import ceil

from shardwise.engine import LossKind
from shardwise.model import Weight
from shardwise.step.inventory import Operation
from shardwise.step.loss import loss_kind
from shardwise.step.matmul_operations import LocalMatrix, matrix_operations
from shardwise.step.operation_context import OperationContext
from shardwise.step.stage_context import StageContext

LOSS_BYTES: dict[LossKind, tuple[int, int]] = {
    "torch": (21, 22),
    "torch_parallel": (26, 26),
    "huggingface": (29, 22),
    "vocab_parallel": (34, 14),
    "vocab_parallel_fused": (6, 4),
    "fused_in_place": (6, 4),
    "fused": (6, 4),
    "fused_upcast": (12, 10),
}
"""Memory traffic per logit in 16 bits, forward and backward, at the rate of a copy.

torch casts to fp32 (6), reads twice and writes log-softmax (12), and its backward reads two and writes one in fp32,
then casts (18): they take as long as 21 and 22 bytes on H100 (``catalog/kernels/h100-sxm.csv``). The Hugging Face loss
copies the shifted fp32 logits once more (8). Megatron's vocabulary-parallel loss makes five fp32 passes. The fused
kernel reads twice and writes the gradient in place; behind an fp32 copy it casts first (6) and back (6)."""

MEGATRON_VOCAB_MULTIPLE = 128
"""Megatron pads its table to this many rows for every tensor-parallel rank (``--make-vocab-size-divisible-by``)."""

FUSED_LOSS_BYTES = (6, 4)
"""A fused head and loss, or a compiled one: as the fused kernel above."""


def embedding_operations(context: StageContext, operation: OperationContext) -> Iterator[Operation]:
    """Looking up rows and adding their gradients into the table.

    The backward clears and writes the whole table's gradient (torch ``embedding_dense_backward``).
    """
    if not context.stage.has_embedding:
        return
    rows = operation.tokens * operation.hidden_size * operation.residual_bytes
    yield operation.memory_operation("embedding", "forward", 2 * rows)
    if not operation.is_base_frozen:
        table = context.embedding_elements * operation.element_bytes
        yield operation.memory_operation("embedding.backward", "backward", 2 * rows + table)


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
    forward, backward = _loss_bytes(context)
    logits = operation.tokens * matrix.out_features
    yield operation.memory_operation("loss", "forward", logits * forward * scale)
    yield operation.memory_operation("loss.backward", "backward", logits * backward * scale)


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
    return LocalMatrix(
        name="head",
        kind="matmul",
        dtype=operation.core_dtype,
        rows=operation.tokens,
        out_features=ceil(vocab_size / tp),
        in_features=hidden_size,
    )


def _loss_bytes(context: StageContext) -> tuple[int, int]:
    recipe = context.plan.recipe
    kind = loss_kind(profile=context.profile, recipe=recipe, tp=context.plan.layout.tp)
    if recipe.fused_loss or (recipe.compile and kind == "torch"):
        return FUSED_LOSS_BYTES
    return LOSS_BYTES[kind]

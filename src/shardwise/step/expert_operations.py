"""Memory-bound operations of routed experts: scores, token copies in the order of experts and back, activations.

How long this takes depends on who moves the rows. Transformer Engine has one kernel for each direction. Our trainer
gathers in both directions, in kernels that a compiler joins with the norm before and the sum after where experts are
not divided. torchtitan writes by index, number by number. Timed on one H200 as bytes at the rate of a copy, 3.65 TB/s,
2,048 wide, 32,768 tokens of four copies each (``benchmarks/results/2026-11-30-h200-moe.md`` and ``-experts.md``).
"""

from collections.abc import Iterator

from shardwise.engines.profile import RowKernels
from shardwise.model import MoeSpec
from shardwise.step.inventory import Operation
from shardwise.step.operation_context import OperationContext

ROW_BYTES: dict[RowKernels, tuple[float, float]] = {
    "fused": (8, 8),
    "gather": (4.3, 6.2),
    "index_put": (67, 104),
    "transformers": (15, 25),
}
"""Bytes per 16-bit element of every token copy, forward and backward. Gathers: what their kernels take beyond the norms
and residual sums that they contain. Two writes by index take 33 of 67, and the gradient of router weights, a product of
vectors, 48 of 104. What transformers builds gathers, hides rows of absent experts and writes its gradients by index
(DeepSeek-V3's block compiled on one H200; one profile, ``2026-11-30-h200-units-at-once.md``)."""
EAGER_ROW_BYTES = (10.3, 10.3)
"""Bytes of torch's own gathers: one to spread the copies, one before the sum over them, and that sum."""
EXCHANGED_ROW_BYTES = (28.3, 36.4)
"""Bytes where experts are divided: both ends of an exchange put rows in order, and kernels of torch's own weight what
comes back (6.3 and 14.4)."""
WIDE_ROWS_RATIO = 1.36
"""Time of rows in fp32, as torch's autocast leaves them, over that of 16 bits: 86 and 146 bytes."""
SORT_BYTES: dict[RowKernels, float] = {"fused": 0.0, "gather": 3800.0, "index_put": 7500.0, "transformers": 11500.0}
"""Bytes per token copy that choosing, sorting and counting take as long as."""
EAGER_GATED_BYTES = (22, 36)
"""Bytes per element of the width of an expert where gate and up are halves of one tensor and kernels are torch's own:
reading halves runs at half the rate of a copy."""
FOREIGN_GATED_BYTES = (17, 17)
"""Bytes per element of the same where transformers builds the experts, compiled, hidden rows included (as above)."""
WEIGHTED_GATED_BYTES = (5.0, 12.2)
"""Bytes with the weights of rows, compiled: forward, and one kernel that makes all gradients and the activation."""
ROUTING_KERNELS: dict[RowKernels, tuple[int, int]] = {
    "fused": (6, 6),
    "gather": (12, 8),
    "index_put": (12, 12),
    "transformers": (12, 12),
}
"""Kernels of scores, top-k and its bookkeeping, and again for the permutation: low confidence."""
COMPILED_ROUTING_KERNELS = (2, 1)
"""Kernels that routing adds to a compiled block, whose others already count for its guards and wrappers: 18 forward
and 10 backward are launched."""
PLAIN_DISPATCH_CALLS = (48, 29)
"""Calls of Megatron's host around experts whose rows an NCCL all-to-all exchanges, forward and backward.

They come on top of the kernels counted above and of the modules' own time (``block_calls``), and are counted in its
source (NVIDIA/Megatron-LM@0014f13 core/transformer/moe), not fitted. Forward: scores, top-k and the maps of tokens 11,
the same again with sums for the auxiliary loss 15, counts per rank, their gather and their copies to the host, which
waits for them, 16, rows in order twice and back 11, exchanges of rows and of their weights 6; 11 of these 59 are
kernels above. Backward: 38 by the same list without counts, of which 9. Runs that ``deepep`` stands for fuse router and
permutation and replay CUDA graphs.
"""
EAGER_GATED_KERNELS = (2, 4)
EAGER_PRODUCT_BYTES = 8
"""Bytes per element of a product with one number a row: four, at half the rate of a copy."""
SCORE_BYTES = (10, 10)


def routed_operations(
    block: MoeSpec, context: OperationContext, activation: tuple[float, float], kernels: tuple[int, int]
) -> Iterator[Operation]:
    """Everything around the products of routed experts; ``activation`` and its ``kernels`` where they are compiled."""
    rows, element = context.row_kernels, context.element_bytes / 2
    copies = context.tokens * block.num_experts_per_tok / context.layout.tp
    row_bytes = ROW_BYTES[rows]
    if rows == "gather":
        row_bytes = _gathered_bytes(context)
        if block.is_gated:
            activation, kernels = _gated(context)
    elif rows == "transformers" and block.is_gated:
        if context.compiles_experts:
            activation = FOREIGN_GATED_BYTES
        else:
            activation, kernels = EAGER_GATED_BYTES, EAGER_GATED_KERNELS
    width = copies * block.moe_intermediate_size * element
    yield from context.memory_operations("experts.activation", (activation[0] * width, activation[1] * width), kernels)
    wide = WIDE_ROWS_RATIO if context.residual_bytes > context.element_bytes else element
    width = copies * context.hidden_size * wide
    forward, backward = row_bytes
    moved = (forward * width + SORT_BYTES[rows] * copies, backward * width)
    routing = COMPILED_ROUTING_KERNELS if context.compiles_experts else ROUTING_KERNELS[rows]
    yield from context.memory_operations("experts.permute", moved, routing)
    scores = context.replicated_tokens() * block.num_experts * element
    moved = (SCORE_BYTES[0] * scores, SCORE_BYTES[1] * scores)
    routing = COMPILED_ROUTING_KERNELS if context.compiles_experts else ROUTING_KERNELS["fused"]
    yield from context.memory_operations("router.scores", moved, routing)


def _gathered_bytes(context: OperationContext) -> tuple[float, float]:
    """Bytes that our trainer's rows take, per 16-bit element."""
    if context.layout.ep > 1:
        return EXCHANGED_ROW_BYTES
    return ROW_BYTES["gather"] if context.compiles_experts else EAGER_ROW_BYTES


def _gated(context: OperationContext) -> tuple[tuple[float, float], tuple[int, int]]:
    """Bytes per element and kernels of our trainer's activation of experts.

    Without a compiler the kernel of backward is the same, and forward multiplies by the weights in one kernel more.
    """
    if not context.weighs_expert_inputs:
        return EAGER_GATED_BYTES, EAGER_GATED_KERNELS
    if context.compiles_experts:
        return WEIGHTED_GATED_BYTES, (1, 1)
    return (EAGER_GATED_BYTES[0] + EAGER_PRODUCT_BYTES, WEIGHTED_GATED_BYTES[1]), (3, 1)

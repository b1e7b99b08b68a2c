"""What routed experts move between their products: scores, token copies in the order of experts and back, activations.

How long this takes depends on who moves the rows. Transformer Engine has one kernel for each direction. Our trainer and
torchtitan use torch's indexing, kernel by kernel: a write by index goes number by number, a sum by index is atomic.
Timed on one H200 as bytes at the rate of a copy, 2,048 wide, 8,192 and 32,768 tokens of four copies each
(``benchmarks/results/2026-11-30-h200-experts.md``).
"""

from collections.abc import Iterator

from shardwise.engines.profile import RowKernels
from shardwise.model import MoeSpec
from shardwise.step.inventory import Operation
from shardwise.step.operation_context import OperationContext

ROW_BYTES: dict[RowKernels, tuple[float, float]] = {"fused": (8, 8), "index_add": (42, 30), "index_put": (67, 104)}
"""Bytes per 16-bit element of every token copy, forward and backward. ``index_add`` alone takes 30 of 42 and the
backward of indexing 9 of 30; two writes by index take 33 of 67, and the gradient of router weights, a product of
vectors, 48 of 104."""
WIDE_ROWS_RATIO = 1.36
"""Time of rows in fp32, as torch's autocast leaves them, over that of 16 bits: 86 and 146 bytes."""
SORT_BYTES: dict[RowKernels, float] = {"fused": 0.0, "index_add": 7500.0, "index_put": 7500.0}
"""Bytes per token copy that choosing, sorting and counting take as long as."""
EAGER_GATED_BYTES = (22, 36)
"""Bytes per element of the width of an expert where gate and up are halves of one tensor and kernels are torch's own:
reading halves runs at half the rate of a copy."""
ROUTING_KERNELS: dict[RowKernels, tuple[int, int]] = {"fused": (6, 6), "index_add": (10, 10), "index_put": (12, 12)}
"""Kernels of scores, top-k and its bookkeeping, and again for the permutation: low confidence."""
EAGER_GATED_KERNELS = (2, 4)
SCORE_BYTES = (10, 10)


def routed_operations(
    block: MoeSpec, context: OperationContext, activation: tuple[float, float], kernels: tuple[int, int]
) -> Iterator[Operation]:
    """Everything around the products of routed experts; ``activation`` and its ``kernels`` where they are compiled."""
    rows, element = context.row_kernels, context.element_bytes / 2
    copies = context.tokens * block.num_experts_per_tok / context.layout.tp
    if rows == "index_add" and block.is_gated:
        activation, kernels = EAGER_GATED_BYTES, EAGER_GATED_KERNELS
    width = copies * block.moe_intermediate_size * element
    yield from context.memory_operations("experts.activation", (activation[0] * width, activation[1] * width), kernels)
    wide = WIDE_ROWS_RATIO if context.residual_bytes > context.element_bytes else element
    width = copies * context.hidden_size * wide
    forward, backward = ROW_BYTES[rows]
    moved = (forward * width + SORT_BYTES[rows] * copies, backward * width)
    yield from context.memory_operations("experts.permute", moved, ROUTING_KERNELS[rows])
    scores = context.replicated_tokens() * block.num_experts * element
    moved = (SCORE_BYTES[0] * scores, SCORE_BYTES[1] * scores)
    yield from context.memory_operations("router.scores", moved, ROUTING_KERNELS["fused"])

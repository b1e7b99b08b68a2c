"""The attention core: scores, softmax and weighted values, without the projections around it."""

from collections.abc import Iterator
from math import ceil

from shardwise.model import AttentionSpec
from shardwise.step.inventory import Operation, OperationPhase
from shardwise.step.operation_context import ATTENTION_BACKWARD_RATIO, OperationContext
from shardwise.units import Flop

EAGER_BYTES_PER_SCORE = (14, 28)
"""Memory traffic of unfused 16-bit attention per score, forward and backward: 42 bytes together reproduce the 35.1
TFLOP/s limit of unfused PyTorch on A100 (flash-attention benchmark, head dim 128, causal, no dropout) at 80 % of its
bandwidth; split 1 to 2 like the work."""
FUSED_SOFTMAX_BYTES_PER_SCORE = (10.2, 18.5)
"""Memory traffic per score with one kernel for scale, mask and softmax (Megatron), at the rate of a copy: two products
take as long as 2.2 bytes each with heads of 64 to 128, softmax as 5.9; backward has four products and a softmax of 10.1
(``2026-11-28-h100-alignment.csv``). The sizes alone would be 8 and 14."""
PRODUCT_BYTES_PER_SCORE = 2.2
WRITTEN_OUT_PRODUCTS = (2, 4)
"""Products of written-out attention, forward and backward, each of which these bytes a score stand for where rows of
heads and scores start on 16 bytes. Where they do not, products have a rate of their own."""
DROPOUT_BYTES_PER_SCORE = (5.1, 4.3)
"""Memory traffic of dropout per score: read and written once, with a byte of mask (same file)."""
ALIGNED_BYTES = 16
FLASH_DROPOUT_RATIOS = (1.22, 1.13)
"""Time of fused attention with dropout over that without: 1.18 to 1.32 forward and 1.10 to 1.16 backward with heads of
64 and 128 and 2,048 and 8,192 tokens (same file)."""
FLASH_KERNELS = (2, 3)
"""Kernels of fused attention: forward with the copy into its layout, backward with its preparation."""
PACKED_COPIES = (3, 3)
"""Copies of one tensor of heads, forward and backward, that pack queries, keys and values for FlashAttention-1: each is
joined with the others, and each gradient with the others again (EleutherAI/gpt-neox@8dc25da, 2023-01,
``megatron/model/transformer.py`` and ``flash_attention.py``)."""
TURNED_COPIES = (4, 1)
"""Copies that several sequences need besides: the stream has the sequence as its first dim and the kernel has the
batch, so all three are turned and the output is turned back, and so is its gradient."""
COPY_BYTES = 4
"""A 16-bit element is read and written."""
FUSED_SOFTMAX_KERNELS = (6, 8)
EAGER_KERNELS = (12, 13)
"""Kernels of eager attention: 10 more than flash in forward and in backward were counted on H100
(``2026-11-28-h100-dispatch.csv``)."""


def attended_pairs(*, seq_len: int, is_causal: bool, sliding_window: int | None) -> float:
    """Query-key pairs one head computes for one sequence.

    Causal attention sees half of the square on average; a window of w sees ``w s - w^2 / 2``.

    >>> attended_pairs(seq_len=8, is_causal=True, sliding_window=None)
    32.0
    >>> attended_pairs(seq_len=8, is_causal=True, sliding_window=2)
    14.0
    """
    if sliding_window is not None and sliding_window < seq_len:
        return sliding_window * seq_len - sliding_window**2 / 2
    return seq_len**2 / 2 if is_causal else float(seq_len**2)


def attention_forward_flop(spec: AttentionSpec, context: OperationContext) -> Flop:
    """FLOP of one forward on one rank, each pair counted once: ``2 (d_qk + d_v)`` per pair and head.

    Documents packed into one sequence attend within themselves.
    """
    length = context.document_len
    pairs = attended_pairs(seq_len=length, is_causal=spec.is_causal, sliding_window=spec.sliding_window)
    documents = context.sequences * context.seq_len / length
    heads = spec.num_attention_heads / context.layout.tp
    return 2.0 * documents * pairs / context.layout.cp * heads * (spec.head_dim + spec.v_head_dim)


def attention_operations(name: str, spec: AttentionSpec, context: OperationContext) -> Iterator[Operation]:
    """Forward and backward of the attention core, flash or eager."""
    forward = attention_forward_flop(spec, context)
    heads = ceil(spec.num_attention_heads / context.layout.tp)
    kv_heads = ceil(spec.num_key_value_heads / context.layout.tp)
    tokens, element = context.tokens, context.element_bytes
    streamed = tokens * element * (heads + kv_heads) * (spec.head_dim + spec.v_head_dim)
    scores = context.sequences * heads * context.seq_len**2 / context.layout.cp * element / 2

    flash_ratios = FLASH_DROPOUT_RATIOS if context.attention_dropout else (1.0, 1.0)

    widths = (spec.head_dim, spec.v_head_dim, context.seq_len)
    is_unaligned = context.is_eager_attention and any(width * element % ALIGNED_BYTES for width in widths)

    def core(phase: OperationPhase, flop: Flop, num_bytes: float, num_kernels: int) -> Operation:
        flash_ratio = flash_ratios[phase == "backward"]
        products = WRITTEN_OUT_PRODUCTS[phase == "backward"] if is_unaligned else 0
        per_score = (spec.head_dim + spec.v_head_dim) * 2 / element
        return Operation(
            name=f"{name}.core" if phase == "forward" else f"{name}.core.backward",
            kind="attention",
            phase=phase,
            count=1,
            flop=flop,
            num_bytes=round(num_bytes - products * PRODUCT_BYTES_PER_SCORE * scores),
            dtype=context.core_dtype,
            m=min(context.seq_len // context.layout.cp, context.document_len),
            n=min(context.document_len, spec.sliding_window or context.document_len),
            k=spec.head_dim,
            num_kernels=num_kernels,
            slowdown_ratio=1.0 if context.is_eager_attention else flash_ratio,
            unaligned_flop=products * per_score * scores,
        )

    if context.is_eager_attention:
        forward_bytes, backward_bytes = (
            FUSED_SOFTMAX_BYTES_PER_SCORE if context.has_fused_softmax else EAGER_BYTES_PER_SCORE
        )
        forward_dropout, backward_dropout = DROPOUT_BYTES_PER_SCORE if context.attention_dropout else (0.0, 0.0)
        forward_kernels, backward_kernels = FUSED_SOFTMAX_KERNELS if context.has_fused_softmax else EAGER_KERNELS
        yield core("forward", forward, scores * (forward_bytes + forward_dropout), forward_kernels)
        yield core("backward", 2 * forward, scores * (backward_bytes + backward_dropout), backward_kernels)
    else:
        if context.packs_heads:
            elements = tokens * heads * spec.head_dim
            turned = TURNED_COPIES if context.sequences > 1 else (0, 0)
            ahead, back = PACKED_COPIES[0] + turned[0], PACKED_COPIES[1] + turned[1]
            sizes = COPY_BYTES * elements * ahead, COPY_BYTES * elements * back
            yield from context.memory_operations(f"{name}.packing", sizes, (1 + turned[0], 1 + turned[1]))
        yield core("forward", forward, streamed, FLASH_KERNELS[0])
        yield core("backward", ATTENTION_BACKWARD_RATIO * forward, 2.5 * streamed, FLASH_KERNELS[1])

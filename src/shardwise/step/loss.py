"""Bytes the logits and the cross-entropy hold, per logit, in forward and in backward."""

from dataclasses import dataclass

from shardwise.columns import most
from shardwise.engines.profile import EngineProfile, LossKind
from shardwise.recipe import FusedLossKernel, Recipe
from shardwise.units import MIB, Bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class LossBytes:
    """Bytes per logit alive at once."""

    forward: int
    backward: int
    head: int
    """Bytes while the head's weight and input gradients are computed."""


LOSS_BYTES: dict[LossKind, LossBytes] = {
    # logits 2, their fp32 copy 4, log-softmax 4; then log-softmax 4 with its gradient 4 and the softmax gradient 4.
    "torch": LossBytes(forward=10, backward=12, head=2),
    # DTensor's loss parallel: forward holds one more fp32 copy, backward four, and the logits stay (traced).
    "torch_parallel": LossBytes(forward=14, backward=18, head=4),
    # The same: loops and transformers' Trainer keep the loss alone of the model's output, which frees its logits.
    "huggingface": LossBytes(forward=10, backward=12, head=2),
    # Megatron's vocabulary-parallel loss works in place on one fp32 copy; the gradient is cast beside it.
    "vocab_parallel": LossBytes(forward=6, backward=6, head=2),
    # nanotron's shifts the fp32 logits into a second copy, of which alone backward has need.
    "vocab_parallel_upcast": LossBytes(forward=10, backward=6, head=2),
    # Megatron's own fusion, compiled: exponentials and gradient are fresh fp32 copies beside what they replace.
    "vocab_parallel_compiled": LossBytes(forward=10, backward=10, head=2),
    # Transformer Engine's kernel writes the gradient over the logits; with tp > 1 one copy stays beside them.
    "fused_in_place": LossBytes(forward=2, backward=2, head=2),
    "vocab_parallel_fused": LossBytes(forward=4, backward=4, head=4),
    # One kernel from low-precision logits to their gradient (torch.compile of the same expression).
    "fused": LossBytes(forward=2, backward=4, head=2),
    # The same after the model has cast its logits to fp32: logits 2, fp32 logits turned gradient 4, cast gradient 2.
    "fused_upcast": LossBytes(forward=6, backward=8, head=2),
}
"""Measured per phase on an H100 with torch 2.11 (``benchmarks/results``): torch, huggingface and fused. Sources of the
others: torch ``aten/src/ATen/native/LossNLL.cpp`` and ``SoftMax.cpp``; transformers ``loss/loss_utils.py``;
Megatron-LM ``core/tensor_parallel/cross_entropy.py``; NVIDIA/Megatron-LM@0cb4a9c
``core/fusions/fused_cross_entropy.py``, which says what torch's compiler made of the versions before it;
TransformerEngine ``common/triton/cross_entropy.py``."""

FUSED_KIND: dict[LossKind, LossKind] = {
    "torch": "fused",
    "huggingface": "fused_upcast",
    "vocab_parallel": "vocab_parallel_fused",
}
UNFUSED_KIND: dict[LossKind, LossKind] = {"vocab_parallel_fused": "vocab_parallel"}
KERNEL_KIND: dict[LossKind, dict[FusedLossKernel | None, LossKind]] = {
    "vocab_parallel_fused": {"native": "vocab_parallel_compiled"}
}
"""The loss by the recipe's ``fused_loss_kernel``, for fused losses with a choice of kernels."""


def loss_kind(*, profile: EngineProfile, recipe: Recipe, tp: int) -> LossKind:
    """The loss a recipe asks for: the engine's own, compiled where the engine compiles it, or as the recipe says."""
    return _on_ranks(asked_loss(profile=profile, recipe=recipe), is_divided=tp > 1)


def _on_ranks(kind: LossKind, *, is_divided: bool) -> LossKind:
    """The loss where tensor parallelism divides the vocabulary, or does not."""
    if is_divided:
        return "torch_parallel" if kind == "torch" else kind
    return "fused_in_place" if kind == "vocab_parallel_fused" else kind


def asked_loss(*, profile: EngineProfile, recipe: Recipe) -> LossKind:
    """The loss that is asked for, whether the vocabulary is divided or not."""
    kind, fused_loss = profile.loss, recipe.fused_loss
    if fused_loss is not None or (profile.compiles_loss and recipe.compile):
        kind = (UNFUSED_KIND if fused_loss is False else FUSED_KIND).get(kind, kind)
    return KERNEL_KIND.get(kind, {}).get(recipe.fused_loss_kernel, kind)


def has_loss_kernels(profile: EngineProfile) -> bool:
    """Whether an engine has two kernels for its fused loss."""
    return profile.loss in KERNEL_KIND


FULL_PRECISION_LOSS_BYTES = LossBytes(forward=8, backward=12, head=4)
"""With fp32 activations the logits themselves are the fp32 copy."""


def loss_bytes(*, kind: LossKind, element_bytes: int, is_divided: bool) -> LossBytes:
    """Bytes per logit for activations of ``element_bytes`` of a loss that is asked for (:func:`asked_loss`)."""
    return LOSS_BYTES[_on_ranks(kind, is_divided=is_divided)] if element_bytes < 4 else FULL_PRECISION_LOSS_BYTES


def own_piece_bytes(*, element_bytes: int, is_compiled: bool) -> int:
    """Bytes per logit of one piece of our trainer's loss, whose gradient takes the logits' place.

    Without a compiler an fp32 copy stands beside low-precision logits; fp32 logits are worked on themselves.
    """
    return element_bytes + (4 if element_bytes < 4 and not is_compiled else 0)


def num_own_pieces(*, num_tokens: int, vocab_rows: int, element_bytes: int) -> int:
    """Pieces of our trainer's loss: as few as keep the logits of one below ``OWN_LOGITS_BYTES``.

    >>> num_own_pieces(num_tokens=8192, vocab_rows=128256, element_bytes=2)
    4
    """
    return most(1, -(-num_tokens * vocab_rows * element_bytes // OWN_LOGITS_BYTES))


ALIGNED_ROWS, PADDED_ROWS = 8, 64


def padded_rows(vocab_rows: int) -> int:
    """Rows of the head that our trainer multiplies with: rows of zeros below them where they are no multiple of 8.

    GPUs multiply matrices of 16 bits at full speed where a row of logits has a multiple of 8 numbers. 2,048 tokens by
    GPT-2's 50,257 rows of 1,600 take 3.42 ms on an H200, and by 50,304 rows 0.42 ms
    (``benchmarks/results/2026-11-30-h200-moe.md``).

    >>> padded_rows(50257), padded_rows(50264)
    (50304, 50264)
    """
    return vocab_rows if vocab_rows % ALIGNED_ROWS == 0 else -(-vocab_rows // PADDED_ROWS) * PADDED_ROWS


def num_liger_pieces(*, num_tokens: int, vocab_size: int, hidden_size: int) -> int:
    """Pieces of Liger's fused head and loss: the logits of one are about as large as the head's input.

    Source: linkedin/Liger-Kernel ``src/liger_kernel/ops/fused_linear_cross_entropy.py``.
    Assumes: its gradients take the logits' place.

    >>> num_liger_pieces(num_tokens=8192, vocab_size=128256, hidden_size=4096)
    32
    """
    smallest = -(-num_tokens // -(-vocab_size // hidden_size))
    return -(-num_tokens // (1 << (smallest - 1).bit_length()))


OWN_LOGITS_BYTES = 512 * MIB
"""The largest piece of logits our trainer makes by itself: large enough that its products run at full speed."""


def logits_bytes(*, tokens: int, vocab_size: int, shards: int, chunks: int, bytes_per_logit: int) -> Bytes:
    """Bytes of one piece of the logits on one rank: ``ceil(T / chunks) * ceil(V / shards)`` logits."""
    return (-(-tokens // chunks)) * (-(-vocab_size // shards)) * bytes_per_logit

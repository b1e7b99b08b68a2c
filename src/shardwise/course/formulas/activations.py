"""Activations one transformer layer keeps for its backward pass, and what the loss adds."""

from typing import Literal

SavedWide = Literal[2, 3, 4]


def block_activation_bytes(*, seq_len: int, micro_batch_size: int, hidden_size: int, num_attention_heads: int) -> float:
    """Activations of one layer without any parallelism: ``sbh (34 + 5 a s / h)``.

    Source: Korthikanti et al. 2022, arXiv:2205.05198, equation 1.
    Assumes: GPT block (GELU, 4h wide, dropout), 16-bit activations, attention scores stored.

    >>> block_activation_bytes(seq_len=2048, micro_batch_size=1, hidden_size=4096, num_attention_heads=32) / 1e6
    956.301312
    """
    scores = 5 * num_attention_heads * seq_len / hidden_size
    return seq_len * micro_batch_size * hidden_size * (34 + scores)


def tensor_parallel_activation_bytes(
    *, seq_len: int, micro_batch_size: int, hidden_size: int, num_attention_heads: int, tp: int
) -> float:
    """Activations of one layer on one tensor-parallel rank: ``sbh (10 + 24/t + 5 a s / (h t))``.

    Source: Korthikanti et al. 2022, arXiv:2205.05198, equation 2.
    Assumes: as equation 1; norms, dropouts and block inputs stay whole on every rank.

    >>> tensor_parallel_activation_bytes(
    ...     seq_len=2048, micro_batch_size=1, hidden_size=12288, num_attention_heads=96, tp=8) / 1e6
    578.813952
    """
    scores = 5 * num_attention_heads * seq_len / hidden_size
    return seq_len * micro_batch_size * hidden_size * (10 + 24 / tp + scores / tp)


def sequence_parallel_activation_bytes(
    *, seq_len: int, micro_batch_size: int, hidden_size: int, num_attention_heads: int, tp: int
) -> float:
    """Activations of one layer with tensor and sequence parallelism: ``sbh / t (34 + 5 a s / h)``.

    Source: Korthikanti et al. 2022, arXiv:2205.05198, equation 4.
    Assumes: as equation 1; everything is divided by t.

    >>> sequence_parallel_activation_bytes(
    ...     seq_len=2048, micro_batch_size=1, hidden_size=12288, num_attention_heads=96, tp=8) / 1e6
    358.612992
    """
    whole = block_activation_bytes(
        seq_len=seq_len,
        micro_batch_size=micro_batch_size,
        hidden_size=hidden_size,
        num_attention_heads=num_attention_heads,
    )
    return whole / tp


def first_stage_activation_bytes(*, layer_activation_bytes: float, num_hidden_layers: int) -> float:
    """Activations of the first pipeline stage under 1F1B: those of all L layers, whatever the number of stages.

    ``p`` micro-batches in flight times ``L / p`` layers.

    Source: Korthikanti et al. 2022, arXiv:2205.05198, equation 5.
    Assumes: 1F1B with at least p micro-batches.

    >>> first_stage_activation_bytes(layer_activation_bytes=5.0, num_hidden_layers=96)
    480.0
    """
    return layer_activation_bytes * num_hidden_layers


def selective_recompute_activation_bytes(
    *, seq_len: int, micro_batch_size: int, hidden_size: int, tp: int = 1
) -> float:
    """Activations of one layer when attention scores are recomputed, or never stored (flash): ``34 sbh / t``.

    Source: Korthikanti et al. 2022, arXiv:2205.05198, equation 6.
    Assumes: as equation 1, with sequence parallelism when tp > 1.

    >>> selective_recompute_activation_bytes(seq_len=2048, micro_batch_size=1, hidden_size=4096) / 1e6
    285.212672
    """
    return 34 * seq_len * micro_batch_size * hidden_size / tp


def full_recompute_activation_bytes(*, seq_len: int, micro_batch_size: int, hidden_size: int) -> int:
    """Activations of one layer when only its input is kept: ``2 sbh``.

    Source: Korthikanti et al. 2022, arXiv:2205.05198, section 5 and table 2.
    Assumes: 16-bit input; the layer being recomputed needs its full activations on top, once.

    >>> full_recompute_activation_bytes(seq_len=2048, micro_batch_size=1, hidden_size=4096)
    16777216
    """
    return 2 * seq_len * micro_batch_size * hidden_size


def score_share(*, seq_len: int, hidden_size: int, num_attention_heads: int) -> float:
    """Share of a layer's activations that attention scores take, and that selective recomputation saves.

    Source: Korthikanti et al. 2022, arXiv:2205.05198, section 5 (70 % for GPT-3, 65 % for MT-NLG).
    Assumes: as equation 1.

    >>> round(score_share(seq_len=2048, hidden_size=12288, num_attention_heads=96), 3)
    0.702
    """
    scores = 5 * num_attention_heads * seq_len / hidden_size
    return scores / (34 + scores)


def flash_block_bytes_per_token(
    *,
    hidden_size: int,
    num_attention_heads: int,
    num_key_value_heads: int,
    intermediate_size: int,
    saved_wide_tensors: SavedWide,
    has_fused_norm: bool = True,
) -> float:
    """Activations per token of one block with flash attention, for any head grouping and feed-forward width.

    ``h (12 + 4 k/a + 2 c f/h) + 4 a``, and ``12 h`` more when RMSNorm is decomposed into fp32 steps.

    Args:
        hidden_size: h; the query heads together are as wide.
        num_attention_heads: a.
        num_key_value_heads: k.
        intermediate_size: f.
        saved_wide_tensors: c, tensors of width f kept: 2 for a GELU block, 3 for a fused SwiGLU, 4 for an eager one.
        has_fused_norm: whether a norm keeps its 16-bit input only.

    Source: derived from the saved tensors of each operation; measured with saved-tensor hooks on torch 2.13 (GPT-2
        style block 32.1, Llama-3-8B block with decomposed RMSNorm 53.2 bytes per hidden element).
    Assumes: bf16, no dropout, head_dim * a = h.

    >>> per_token = flash_block_bytes_per_token(hidden_size=4096, num_attention_heads=32, num_key_value_heads=8,
    ...     intermediate_size=14336, saved_wide_tensors=4)
    >>> (per_token - 4 * 32) / 4096
    41.0
    """
    norms = 12 if has_fused_norm else 24
    grouped = 4 * num_key_value_heads / num_attention_heads
    wide = 2 * saved_wide_tensors * intermediate_size / hidden_size
    return hidden_size * (norms + grouped + wide) + 4 * num_attention_heads


def logits_peak_bytes(*, num_tokens: int, vocab_size: int, tp: int = 1, has_gradient_copies: bool = True) -> float:
    """Bytes of logits and cross-entropy at their peak: 14 per logit, or 10 when gradient copies reuse memory.

    bf16 logits 2 + fp32 copy 4 + log-softmax 4, and up to fp32 gradient 4 that overlaps with the cast gradient.

    Source: Llama-3-8B head and loss measured with saved-tensor hooks on torch 2.13: 19.6 to 23.5 GiB for 16,384 tokens
        (the lower figure is 10 bytes, the higher 12).
    Assumes: no chunking and no fused loss; vocab-parallel when tp > 1.

    >>> logits_peak_bytes(num_tokens=16384, vocab_size=128256, has_gradient_copies=False) / 2**30
    19.5703125
    """
    return num_tokens * vocab_size / tp * (14 if has_gradient_copies else 10)

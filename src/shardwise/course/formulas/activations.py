"""Activations one transformer layer keeps for its backward pass, and what the loss adds."""


def block_activation_bytes(*, seq_len: int, micro_batch_size: int, hidden_size: int, num_attention_heads: int) -> float:
    """Activations of one layer without any parallelism: ``sbh (34 + 5 a s / h)``.

    Source: Korthikanti et al. 2022, arXiv:2205.05198, equation 1.
    Assumes: GPT block (GELU, 4h wide, dropout), 16-bit activations, attention scores stored.

    >>> block_activation_bytes(seq_len=2048, micro_batch_size=1, hidden_size=4096, num_attention_heads=32) / 1e6
    956.301312
    """
    scores = 5 * num_attention_heads * seq_len / hidden_size
    return seq_len * micro_batch_size * hidden_size * (34 + scores)


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

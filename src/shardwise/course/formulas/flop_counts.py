"""FLOP per token of one training step, convention by convention, and the utilisations built on them.

One multiply-add is two FLOP. Published "MFU" figures of the same run differ by a sixth because of these conventions,
so a utilisation is never printed without its name.
"""

from shardwise.units import Flop, FlopPerSecond


def palm_flop_per_token(
    *, num_params: float, num_hidden_layers: int, num_attention_heads: int, head_dim: int, seq_len: int
) -> Flop:
    """Training FLOP per token: ``6 N + 12 L H Q T``.

    Source: Chowdhery et al. 2022 (PaLM), arXiv:2204.02311, appendix B.
    Assumes: N counts every parameter, embedding included; attention is not halved for causality.

    >>> round(palm_flop_per_token(num_params=8_030_261_248, num_hidden_layers=32, num_attention_heads=32,
    ...     head_dim=128, seq_len=8192) / 1e9, 1)
    61.1
    """
    return 6 * num_params + 12 * num_hidden_layers * num_attention_heads * head_dim * seq_len


def torchtitan_flop_per_token(
    *,
    num_params: float,
    num_input_embedding_params: float,
    num_hidden_layers: int,
    num_attention_heads: int,
    qk_plus_v_dim: int,
    seq_len: int,
) -> Flop:
    """Training FLOP per token: ``6 (N - N_embedding) + 6 L a (d_qk + d_v) s``, attention not halved.

    Args:
        num_params: N; active parameters for a mixture of experts.
        num_input_embedding_params: the input table, which is looked up and not multiplied; 0 when it is also the head.
        num_hidden_layers: L.
        num_attention_heads: a.
        qk_plus_v_dim: d_qk + d_v of one head.
        seq_len: s.

    Source: pytorch/torchtitan, torchtitan/models/utils.py.
    Assumes: full attention.

    >>> round(torchtitan_flop_per_token(num_params=8_030_261_248, num_input_embedding_params=525_336_576,
    ...     num_hidden_layers=32, num_attention_heads=32, qk_plus_v_dim=256, seq_len=8192) / 1e9, 1)
    57.9
    """
    matrices = 6 * (num_params - num_input_embedding_params)
    return matrices + 6 * num_hidden_layers * num_attention_heads * qk_plus_v_dim * seq_len


def causal_flop_per_token(
    *,
    num_params: float,
    num_input_embedding_params: float,
    num_hidden_layers: int,
    num_attention_heads: int,
    qk_plus_v_dim: int,
    seq_len: int,
) -> Flop:
    """Training FLOP per token with causal attention counted once: ``6 (N - N_embedding) + 3 L a (d_qk + d_v) s``.

    Source: NVIDIA/Megatron-LM, megatron/training/training.py, ``num_floating_point_operations`` (attention halved).
    Assumes: every query sees half of the keys on average.

    >>> round(causal_flop_per_token(num_params=8_030_261_248, num_input_embedding_params=525_336_576,
    ...     num_hidden_layers=32, num_attention_heads=32, qk_plus_v_dim=256, seq_len=8192) / 1e9, 1)
    51.5
    """
    matrices = 6 * (num_params - num_input_embedding_params)
    return matrices + 3 * num_hidden_layers * num_attention_heads * qk_plus_v_dim * seq_len


def megatron_2021_flop_per_step(
    *, global_batch_size: int, seq_len: int, num_hidden_layers: int, hidden_size: int, vocab_size: int
) -> Flop:
    """Hardware FLOP of one step with full recomputation: ``96 B s L h^2 (1 + s/6h + V/16 L h)``.

    Source: Narayanan et al. 2021, arXiv:2104.04473, appendix (equation 3).
    Assumes: GPT, 4h wide, every layer recomputed, attention not halved.

    >>> round(megatron_2021_flop_per_step(global_batch_size=1536, seq_len=2048, num_hidden_layers=96,
    ...     hidden_size=12288, vocab_size=51200) / 1e18, 2)
    4.51
    """
    shape = 1 + seq_len / (6 * hidden_size) + vocab_size / (16 * num_hidden_layers * hidden_size)
    return 96 * global_batch_size * seq_len * num_hidden_layers * hidden_size**2 * shape


def korthikanti_flop_per_step(
    *, global_batch_size: int, seq_len: int, num_hidden_layers: int, hidden_size: int, vocab_size: int
) -> Flop:
    """Model FLOP of one step: ``72 B L s h^2 (1 + s/6h + V/12 L h)``.

    Three quarters of :func:`megatron_2021_flop_per_step` but for the logits, which full recomputation does not repeat.

    Source: Korthikanti et al. 2022, arXiv:2205.05198, section 6.3 and appendix A.
    Assumes: GPT, 4h wide, attention not halved.

    >>> round(korthikanti_flop_per_step(global_batch_size=64, seq_len=2048, num_hidden_layers=96, hidden_size=12288,
    ...     vocab_size=51200) / 1e15, 1)
    141.1
    """
    shape = 1 + seq_len / (6 * hidden_size) + vocab_size / (12 * num_hidden_layers * hidden_size)
    return 72 * global_batch_size * num_hidden_layers * seq_len * hidden_size**2 * shape


def korthikanti_selective_flop_per_step(
    *, global_batch_size: int, seq_len: int, num_hidden_layers: int, hidden_size: int, vocab_size: int
) -> Flop:
    """Hardware FLOP of one step with the attention core recomputed: ``72 B L s h^2 (1 + s/3h + V/12 L h)``.

    It adds ``12 s^2 h`` a sequence and layer, three times what one more forward of the core takes (``4 s^2 h``).

    Source: Korthikanti et al. 2022, arXiv:2205.05198, appendix A.
    Assumes: as :func:`korthikanti_flop_per_step`; the printed 52.8 % of the 175B model follows within 0.1.

    >>> round(korthikanti_selective_flop_per_step(global_batch_size=64, seq_len=2048, num_hidden_layers=96,
    ...     hidden_size=12288, vocab_size=51200) / 1e15, 1)
    144.9
    """
    model = korthikanti_flop_per_step(
        global_batch_size=global_batch_size,
        seq_len=seq_len,
        num_hidden_layers=num_hidden_layers,
        hidden_size=hidden_size,
        vocab_size=vocab_size,
    )
    return model + 12 * global_batch_size * num_hidden_layers * seq_len**2 * hidden_size


def llm_foundry_flop_per_token(*, num_params: float, num_hidden_layers: int, hidden_size: int, seq_len: int) -> Flop:
    """Training FLOP per token: ``3 (2 N + 4 L h s)``.

    Source: mosaicml/llm-foundry, scripts/train/benchmarking/README.md and Composer's MFU callback.
    Assumes: N includes the tied embedding; attention is not halved.

    >>> round(llm_foundry_flop_per_token(num_params=64_862_437_376, num_hidden_layers=80, hidden_size=8192,
    ...     seq_len=2048) / 1e9, 1)
    405.3
    """
    return 3 * (2 * num_params + 4 * num_hidden_layers * hidden_size * seq_len)


def recompute_flop_ratio(*, recomputed_fraction: float = 1.0) -> float:
    """Hardware FLOP divided by model FLOP: ``1 + r / 3``, 4/3 when everything is recomputed.

    Source: mosaicml/llm-foundry, scripts/train/benchmarking/README.md (HFU = 4/3 MFU).
    Assumes: backward costs two forwards; r is the share of the forward FLOP run again.

    >>> round(recompute_flop_ratio(), 4)
    1.3333
    """
    return 1 + recomputed_fraction / 3


def model_flop_utilisation(
    *, flop_per_step: Flop, step_s: float, num_gpus: int, peak_flop_per_s: FlopPerSecond
) -> float:
    """MFU: model FLOP of a step over what the GPUs could do in its time.

    Source: Chowdhery et al. 2022 (PaLM), arXiv:2204.02311, appendix B.
    Assumes: a dense peak, and a FLOP convention named beside the figure.

    >>> round(model_flop_utilisation(flop_per_step=57.9e9 * 6667, step_s=1.0, num_gpus=1, peak_flop_per_s=989e12), 3)
    0.39
    """
    return flop_per_step / (step_s * num_gpus * peak_flop_per_s)

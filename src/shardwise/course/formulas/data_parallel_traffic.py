"""Bytes one rank sends per step to keep data-parallel replicas equal, strategy by strategy."""

from shardwise.course.formulas.collective_volume import all_gather_bytes, all_reduce_bytes


def ddp_bytes(*, num_params: float, dp_shard: int, gradient_bytes: int = 2) -> float:
    """One all-reduce of the gradients: ``2 * 2 N (n - 1) / n`` bytes in 16 bits, about 4N.

    Source: Li et al. 2020 (PyTorch DDP), arXiv:2006.15704, section 3.2.
    Assumes: one reduction per step however many micro-batches are accumulated.

    >>> ddp_bytes(num_params=7e9, dp_shard=8) / 1e9
    24.5
    """
    return all_reduce_bytes(payload_bytes=num_params * gradient_bytes, group_size=dp_shard)


def zero1_bytes(*, num_params: float, dp_shard: int, gradient_bytes: int = 4, weight_bytes: int = 2) -> float:
    """Reduce-scatter of gradients and all-gather of updated weights: about 6N with fp32 gradients.

    Source: Rajbhandari et al. 2020, arXiv:1910.02054, section 7.2; NVIDIA/Megatron-LM, dist_optimizer.md.
    Assumes: once per step.

    >>> zero1_bytes(num_params=8e9, dp_shard=8) / 1e9
    42.0
    """
    return all_gather_bytes(payload_bytes=num_params * (gradient_bytes + weight_bytes), group_size=dp_shard)


def fsdp_bytes(
    *, num_params: float, dp_shard: int, compute_bytes: int = 2, reduce_bytes: int = 4, gathers: int = 2
) -> float:
    """All-gather in forward and backward and one reduce-scatter: about 8N bytes with bf16 compute and fp32 reduction.

    That is twice the 4N of a 16-bit all-reduce, not the 1.5 times of the textbook, which reduces in 16 bits.

    Source: pytorch/pytorch, torch/distributed/fsdp/_fully_shard; Rajbhandari et al. 2020, arXiv:1910.02054,
        section 7.2.
    Assumes: one micro-batch; ``gathers`` is 1 when parameters stay gathered between forward and backward.

    >>> fsdp_bytes(num_params=7e9, dp_shard=8) / 1e9
    49.0
    """
    payload = num_params * (gathers * compute_bytes + reduce_bytes)
    return all_gather_bytes(payload_bytes=payload, group_size=dp_shard)


def fsdp_all_gather_count(*, num_blocks: int) -> int:
    """All-gathers of one FSDP2 step with one micro-batch: ``2 L + 1``.

    Blocks gather in forward and backward; the root unit stays gathered after forward.

    Source: counted on torch 2.13: 9 for 4 blocks, 161 for 80.
    Assumes: one unit per block and the root; ``reshard_after_forward=True``.

    >>> fsdp_all_gather_count(num_blocks=80)
    161
    """
    return 2 * num_blocks + 1


def fsdp_reduce_scatter_count(*, num_blocks: int) -> int:
    """Reduce-scatters of one FSDP2 step with one micro-batch: ``L + 1``.

    Source: counted on torch 2.13: 5 for 4 blocks, 81 for 80.
    Assumes: one unit per block and the root.

    >>> fsdp_reduce_scatter_count(num_blocks=80)
    81
    """
    return num_blocks + 1

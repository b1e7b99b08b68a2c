"""Bytes of weights, gradients and optimizer states per parameter, convention by convention.

Frameworks keep different copies, so "bytes per parameter of an Adam run" has several right answers. Each convention is
its own function; the seeds' 12 bytes are in :mod:`shardwise.formulas.seed`.
"""

from typing import Literal

ZeroStage = Literal[0, 1, 2, 3]
MegatronPrecision = Literal["bf16", "fp16", "fp32"]


def zero_bytes_per_param(*, dp_shard: int = 1, zero_stage: ZeroStage = 0) -> float:
    """Bytes per parameter on one rank under ZeRO with mixed-precision Adam.

    Unsharded ``2 + 2 + K`` with ``K = 12``; stage 1 ``4 + 12/d``, stage 2 ``2 + 14/d``, stage 3 ``16/d``.

    Args:
        dp_shard: N_d, ranks the states are divided over.
        zero_stage: 0 baseline, 1 P_os, 2 P_os+g, 3 P_os+g+p.

    Source: Rajbhandari et al. 2020, arXiv:1910.02054, section 5 and figure 1.
    Assumes: 2-byte weights and gradients, fp32 master copy and two fp32 moments; no buffers.

    >>> zero_bytes_per_param(dp_shard=64, zero_stage=3)
    0.25
    """
    weights, gradients, optimizer = 2.0, 2.0, 12.0
    return (
        weights / (dp_shard if zero_stage >= 3 else 1)
        + gradients / (dp_shard if zero_stage >= 2 else 1)
        + optimizer / (dp_shard if zero_stage >= 1 else 1)
    )


def zero_model_state_bytes(*, num_params: float, dp_shard: int = 1, zero_stage: ZeroStage = 0) -> float:
    """Model states of one rank under ZeRO with mixed-precision Adam.

    Source: Rajbhandari et al. 2020, arXiv:1910.02054, figure 1.
    Assumes: as :func:`zero_bytes_per_param`.

    >>> round(zero_model_state_bytes(num_params=7.5e9, dp_shard=64, zero_stage=1) / 1e9, 1)
    31.4
    """
    return num_params * zero_bytes_per_param(dp_shard=dp_shard, zero_stage=zero_stage)


def zero_reduction_ratio(*, dp_shard: int, zero_stage: ZeroStage) -> float:
    """How many times smaller ZeRO makes the model states of one rank.

    The "4x, 8x, Nx" of the abstract are its limits for many ranks.

    Source: Rajbhandari et al. 2020, arXiv:1910.02054, section 5.
    Assumes: as :func:`zero_bytes_per_param`.

    >>> round(zero_reduction_ratio(dp_shard=64, zero_stage=1), 1)
    3.8
    """
    return zero_bytes_per_param() / zero_bytes_per_param(dp_shard=dp_shard, zero_stage=zero_stage)


def megatron_bytes_per_param(
    *, dp_shard: int = 1, has_distributed_optimizer: bool = False, precision: MegatronPrecision = "bf16"
) -> float:
    """Bytes per parameter on one rank in Megatron-LM.

    bf16 with fp32 main gradients 18, or ``6 + 12/d`` with the distributed optimizer; fp16 20 or ``4 + 16/d``;
    fp32 16 or ``8 + 8/d``.

    Source: NVIDIA/Megatron-LM, docs/user-guide/features/dist_optimizer.md.
    Assumes: Adam; ``d`` counts context-parallel ranks too.

    >>> megatron_bytes_per_param(dp_shard=64, has_distributed_optimizer=True)
    6.1875
    """
    replicated, divided = {"bf16": (6.0, 12.0), "fp16": (4.0, 16.0), "fp32": (8.0, 8.0)}[precision]
    return replicated + divided / (dp_shard if has_distributed_optimizer else 1)

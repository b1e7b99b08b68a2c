"""Bytes of weights, gradients and optimizer states per parameter, convention by convention.

"Bytes per parameter of an Adam run" has at least six right answers, because frameworks keep different copies. Each
convention is its own function; the seeds' 12 bytes are in :mod:`shardwise.formulas.seed`.
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


def fsdp2_bytes_per_param(*, dp_shard: int) -> float:
    """Bytes per parameter on one rank under FSDP2 with fp32 shards and bf16 gathers: ``16/d``.

    Source: pytorch/pytorch, torch/distributed/fsdp/_fully_shard; parameters, gradients and both moments are fp32.
    Assumes: AdamW; the gathered bf16 copies are transient and counted elsewhere.

    >>> fsdp2_bytes_per_param(dp_shard=8)
    2.0
    """
    return 16 / dp_shard


def pure_bf16_bytes_per_param(*, dp_shard: int = 1) -> float:
    """Bytes per parameter when the whole model is bf16: ``8/d``.

    Source: pytorch/pytorch, torch/optim/adamw.py (``exp_avg`` and ``exp_avg_sq`` follow the parameter's dtype).
    Assumes: AdamW and no fp32 copy of anything.

    >>> pure_bf16_bytes_per_param()
    8.0
    """
    return 8 / dp_shard


def bf16_moments_bytes_per_param(*, dp_shard: int = 1) -> float:
    """Bytes per parameter with fp32 weights and gradients and bf16 moments: ``12/d``.

    Source: pytorch/torchtitan, docs/bf16_optimizer_states.md.
    Assumes: AdamW under FSDP2.

    >>> bf16_moments_bytes_per_param(dp_shard=4)
    3.0
    """
    return 12 / dp_shard


def deepspeed_zero2_gpu_bytes(*, num_params: float, num_gpus: int, offloads_optimizer: bool = False) -> float:
    """Bytes on one GPU as DeepSpeed's own ZeRO-2 estimator prints them: ``2N + 18N/d``, or ``2N`` with offload.

    Source: deepspeedai/DeepSpeed, deepspeed/runtime/zero/stage_1_and_2.py, ``estimate_zero2_model_states_mem_needs``.
    Assumes: 18 = 2 + 4 gradients, 4 master, 8 moments; no buffers, no activations.

    >>> deepspeed_zero2_gpu_bytes(num_params=1e9, num_gpus=8) / 1e9
    4.25
    """
    return 2 * num_params + (0 if offloads_optimizer else 18 * num_params / num_gpus)


def deepspeed_zero3_gpu_bytes(
    *,
    num_params: float,
    largest_layer_params: float,
    num_gpus: int,
    offload: Literal["none", "optimizer", "parameters"],
) -> float:
    """Bytes on one GPU as DeepSpeed's own ZeRO-3 estimator prints them.

    ``4 * largest layer`` plus ``18N/d``, ``2N/d`` with the optimizer offloaded, nothing with parameters offloaded too.

    Source: deepspeedai/DeepSpeed, deepspeed/runtime/zero/stage3.py, ``estimate_zero3_model_states_mem_needs``.
    Assumes: the largest *leaf module*, gathered with its gradient in 16 bits; no prefetch buffers, no activations.

    >>> deepspeed_zero3_gpu_bytes(num_params=8e9, largest_layer_params=0.5e9, num_gpus=8, offload="none") / 1e9
    20.0
    """
    per_param = {"none": 18, "optimizer": 2, "parameters": 0}[offload]
    return 4 * largest_layer_params + per_param * num_params / num_gpus


def deepspeed_offload_host_bytes(*, num_params: float, offloads_parameters: bool, buffer_ratio: float = 1.5) -> float:
    """Host memory of all nodes together as DeepSpeed's estimators print it: 16N, or 18N with parameters, times 1.5.

    Source: deepspeedai/DeepSpeed, deepspeed/runtime/zero/stage3.py (``additional_buffer_factor=1.5``).
    Assumes: ``zero.Init`` builds the model already partitioned.

    >>> deepspeed_offload_host_bytes(num_params=1e9, offloads_parameters=True) / 1e9
    27.0
    """
    return (18 if offloads_parameters else 16) * num_params * buffer_ratio


def adafactor_second_moment_bytes(*, num_rows: int, num_columns: int) -> int:
    """Bytes of Adafactor's factored second moment of one matrix: a row and a column vector in fp32.

    Source: Shazeer and Stern 2018, arXiv:1804.04235, section 3.
    Assumes: no first moment; vectors keep an unfactored moment.

    >>> adafactor_second_moment_bytes(num_rows=4096, num_columns=14336)
    73728
    """
    return 4 * (num_rows + num_columns)


def lora_params(*, rank: int, in_features: int, out_features: int) -> int:
    """Trained parameters LoRA adds to one matrix: ``r (d_in + d_out)``.

    Source: Hu et al. 2021, arXiv:2106.09685, section 4.1.
    Assumes: no bias; the base matrix is frozen.

    >>> lora_params(rank=16, in_features=4096, out_features=4096)
    131072
    """
    return rank * (in_features + out_features)

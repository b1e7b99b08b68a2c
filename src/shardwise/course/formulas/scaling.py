"""The scaling lesson's formulas, apart from the memory of one GPU (:mod:`shardwise.formulas.seed`).

The text is the course lesson "Scaling: Distributed Training, FSDP, DeepSpeed" (phase 10). It is reproduced exactly, so
that a reader can start from the figures that it prints. It is cited below as *scaling lesson*.
"""

from dataclasses import dataclass
from math import ceil

from shardwise.formulas.seed import GPU_BYTES, HALF_BYTES, gradient_bytes, optimizer_bytes, weight_bytes
from shardwise.optimizers import SeedOptimizer
from shardwise.units import Bytes

OPENING_ADAM_BYTES_PER_PARAM = 4
"""The lesson's first paragraph counts both moments in 16 bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedPrecisionComparison:
    """Model states of one model under three precisions."""

    fp32_bytes: float
    mixed_with_master_bytes: float
    mixed_bytes: float

    @property
    def saved_bytes(self) -> float:
        """Bytes that mixed precision saves by the lesson's count, which leaves out the fp32 master copy."""
        return self.fp32_bytes - self.mixed_bytes

    @property
    def saved_fraction(self) -> float:
        """The saved bytes as a share of what fp32 takes."""
        return 1 - self.mixed_bytes / self.fp32_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedPipeline:
    """The result of the lesson's pipeline simulation: time in units of one layer, and the idle share of all stages."""

    total_time: int
    idle_fraction: float


def model_state_bytes(
    *, num_params: float, precision_bytes: int = HALF_BYTES, optimizer: SeedOptimizer = "adam"
) -> float:
    """Weights, gradients and optimizer of a whole model on one device: 12 bytes per parameter with Adam.

    Source: scaling lesson, table "Why distribution is required".
    Assumes: 2 + 2 + 8 bytes; Rajbhandari et al. (arXiv:1910.02054) and Megatron count 16 and 18.

    >>> model_state_bytes(num_params=405e9) / 1e9
    4860.0
    """
    return (
        weight_bytes(num_params=num_params, precision_bytes=precision_bytes)
        + gradient_bytes(num_params=num_params, precision_bytes=precision_bytes)
        + optimizer_bytes(num_params=num_params, optimizer=optimizer)
    )


def opening_adam_bytes(*, num_params: float) -> float:
    """Adam's two moments as the lesson's opening paragraph counts them, in 16 bits.

    Source: scaling lesson, "The problem": 28 GB for 7B. Its own table later says 56 GB.
    Assumes: both moments in 16 bits.

    >>> opening_adam_bytes(num_params=7e9) / 1e9
    28.0
    """
    return num_params * OPENING_ADAM_BYTES_PER_PARAM


def opening_state_bytes(*, num_params: float) -> float:
    """Model states as the opening paragraph counts them: 8 bytes per parameter.

    Source: scaling lesson, "The problem": "56GB before a single activation is stored".
    Assumes: weights, gradients and both moments in 16 bits.

    >>> opening_state_bytes(num_params=7e9) / 1e9
    56.0
    """
    return (
        weight_bytes(num_params=num_params)
        + gradient_bytes(num_params=num_params)
        + opening_adam_bytes(num_params=num_params)
    )


def activation_bytes(*, bytes_per_layer: int, num_hidden_layers: int) -> Bytes:
    """Activations of all layers.

    Source: scaling lesson, step 4 "Memory calculator".
    Assumes: equal layers, no recomputation, no logits.

    >>> activation_bytes(bytes_per_layer=67_108_864, num_hidden_layers=32)
    2147483648
    """
    return bytes_per_layer * num_hidden_layers


def min_gpus(*, total_bytes: float, gpu_bytes: float = GPU_BYTES) -> int:
    """Fewest GPUs whose memory adds up to the total.

    Source: scaling lesson: "405B needs at least 61 H100s".
    Assumes: perfect division and every byte of the card usable.

    >>> min_gpus(total_bytes=4_860e9)
    61
    """
    return ceil(total_bytes / gpu_bytes)


def mixed_precision_comparison(*, num_params: float) -> SeedPrecisionComparison:
    """Model states in fp32, in mixed precision with a master copy, and as the lesson counts mixed precision.

    Source: scaling lesson, step 5 "Mixed precision simulation".
    Assumes: 4 + 4 + 8, 2 + 2 + 4 + 8 and 2 + 2 + 8 bytes. "BF16 + FP32 master" is printed with the third, which has no
    master copy; with it nothing is saved.

    >>> comparison = mixed_precision_comparison(num_params=7e9)
    >>> comparison.fp32_bytes / 1e9, comparison.mixed_bytes / 1e9
    (112.0, 84.0)
    """
    moments = optimizer_bytes(num_params=num_params)
    half = weight_bytes(num_params=num_params) + gradient_bytes(num_params=num_params)
    return SeedPrecisionComparison(
        fp32_bytes=num_params * 4 + num_params * 4 + moments,
        mixed_with_master_bytes=half + num_params * 4 + moments,
        mixed_bytes=half + moments,
    )


def naive_pipeline_utilisation(*, num_stages: int) -> float:
    """Busy share of a pipeline that runs one batch at a time.

    Source: scaling lesson, "Pipeline parallelism": "GPU utilization is only 1/N".
    Assumes: equal stages, one micro-batch.

    >>> naive_pipeline_utilisation(num_stages=4)
    0.25
    """
    return 1 / num_stages


def text_bubble(*, num_stages: int, num_microbatches: int) -> float:
    """The bubble as the lesson's prose counts it: relative to the ideal time, although it says "idle time".

    Source: scaling lesson, "Pipeline parallelism": ``(N - 1) / M`` = 18.75 % for N = 4, M = 16.
    Assumes: equal stages. The idle share of the same pipeline is 15.8 %, which the lesson's program prints.

    >>> text_bubble(num_stages=4, num_microbatches=16)
    0.1875
    """
    return (num_stages - 1) / num_microbatches


def simulated_pipeline(*, num_layers: int, num_stages: int, num_microbatches: int) -> SeedPipeline:
    """Total time and idle share as the lesson's simulation of a GPipe pipeline prints them.

    ``2 (m + p - 1) L / p`` layer units; a forward and a backward of one layer take one unit each.

    Source: scaling lesson, step 3 "Simulate pipeline parallelism".
    Assumes: backward as long as forward, equal stages, free communication.

    >>> simulated_pipeline(num_layers=32, num_stages=4, num_microbatches=16).total_time
    304
    """
    total_time = 2 * (num_microbatches + num_stages - 1) * (num_layers // num_stages)
    busy_time = 2 * num_microbatches * (num_layers // num_stages)
    return SeedPipeline(total_time=total_time, idle_fraction=1 - busy_time / total_time)


def effective_batch_size(*, per_gpu_batch_size: int, num_gpus: int) -> int:
    """Samples per optimizer step of data parallelism.

    Source: scaling lesson, "Data parallelism": 64 GPUs with 16 each make 1,024.
    Assumes: no gradient accumulation.

    >>> effective_batch_size(per_gpu_batch_size=16, num_gpus=64)
    1024
    """
    return per_gpu_batch_size * num_gpus


def ring_all_reduce_bytes(*, gradient_bytes: float, num_gpus: int) -> float:
    """Bytes one GPU sends in a ring all-reduce: ``2 S (N - 1) / N``.

    Source: scaling lesson, step 1. The volume is right; its "after N - 1 steps" is not, a ring takes 2 (N - 1).
    Assumes: a ring with equal pieces.

    >>> ring_all_reduce_bytes(gradient_bytes=14e9, num_gpus=8) / 1e9
    24.5
    """
    return 2 * gradient_bytes * (num_gpus - 1) / num_gpus


def offloaded_gpu_bytes(*, num_params: float, num_gpus: int, offloads_gradients: bool = False) -> float:
    """Model states left on one GPU when the optimizer lives in host memory and the rest is divided.

    Source: scaling lesson, exercise 5 (70B on 4 GPUs with ZeRO-Offload).
    Assumes: ZeRO-3 division of 2-byte weights and gradients; nothing else on the GPU.

    >>> offloaded_gpu_bytes(num_params=70e9, num_gpus=4) / 1e9
    70.0
    """
    kept = weight_bytes(num_params=num_params)
    if not offloads_gradients:
        kept += gradient_bytes(num_params=num_params)
    return kept / num_gpus


def full_recompute_extra_fraction() -> float:
    """Extra computation of full activation checkpointing: one forward of three.

    Source: scaling lesson, exercise 1 ("roughly 33% more compute").
    Assumes: a backward costs two forwards and everything is recomputed.

    >>> round(full_recompute_extra_fraction(), 3)
    0.333
    """
    return 1 / 3

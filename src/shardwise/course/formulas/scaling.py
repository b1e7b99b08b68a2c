"""The scaling lesson's formulas, apart from the memory of one GPU (:mod:`shardwise.formulas.seed`).

The text is the course lesson "Scaling: Distributed Training, FSDP, DeepSpeed" (phase 10). It is reproduced exactly, so
that a reader can start from the figures that it prints. It is cited below as *scaling lesson*.
"""

from dataclasses import dataclass
from math import ceil

from shardwise.formulas.seed import GPU_BYTES, HALF_BYTES, gradient_bytes, optimizer_bytes, weight_bytes
from shardwise.optimizers import SeedOptimizer

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

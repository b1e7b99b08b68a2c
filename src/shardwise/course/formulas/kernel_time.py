"""Time of one kernel that is bound by computing or by moving."""

from shardwise.units import BytesPerSecond, Seconds


def gpu_adam_s(
    *, num_params: float, memory_bandwidth_bytes_per_s: BytesPerSecond, achieved_fraction: float = 0.85
) -> Seconds:
    """Time of Adam on one GPU, bound by its memory: 28 bytes per parameter.

    Source: bytes counted from torch's fused AdamW (read and write weight and two moments, read gradient, all fp32).
    Assumes: fp32 weights and moments; about 85 % of the memory bandwidth.

    >>> round(gpu_adam_s(num_params=17.5e9, memory_bandwidth_bytes_per_s=3.35e12), 2)
    0.17
    """
    return num_params * 28 / (memory_bandwidth_bytes_per_s * achieved_fraction)

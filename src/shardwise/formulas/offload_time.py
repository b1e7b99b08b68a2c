"""Time that states kept in host memory or on drives cost in a step."""

from shardwise.units import BytesPerSecond, Seconds

CPU_ADAM_BYTES_PER_PARAM = 30
"""Read 4 weight, 4 gradient, 8 moments; write 4 weight, 8 moments and the 2-byte copy: mixed precision with an fp32
master. Weights, gradients and moments in bf16 are 14 bytes."""
NVME_BYTES_PER_PARAM_ONE_WAY = 12
"""fp32 master and both moments, read and written back every step (ZeRO-Infinity, arXiv:2104.07857, section 4)."""


def cpu_adam_s(
    *,
    num_params: float,
    host_bandwidth_bytes_per_s: BytesPerSecond,
    bytes_per_param: float = CPU_ADAM_BYTES_PER_PARAM,
) -> Seconds:
    """Time of Adam on one host's CPUs, bound by its memory: 30 bytes per parameter in mixed precision.

    Source: Ren et al. 2021 (ZeRO-Offload), arXiv:2101.06840, section 5 for the kernel; bytes counted from its update.
    Assumes: the kernel streams; measured bandwidth of the host, not its peak.

    >>> [cpu_adam_s(num_params=70e9, host_bandwidth_bytes_per_s=bandwidth) for bandwidth in (100e9, 200e9, 400e9)]
    [21.0, 10.5, 5.25]
    """
    return num_params * bytes_per_param / host_bandwidth_bytes_per_s


def host_transfer_s(*, num_bytes: float, link_bandwidth_bytes_per_s: BytesPerSecond) -> Seconds:
    """Time of a copy between one GPU and its host.

    Source: Ren et al. 2021 (ZeRO-Offload), arXiv:2101.06840, section 4.
    Assumes: pinned memory, one direction, the achieved rate of the link.

    >>> host_transfer_s(num_bytes=17.5e9, link_bandwidth_bytes_per_s=25e9)
    0.7
    """
    return num_bytes / link_bandwidth_bytes_per_s


def nvme_step_s(*, num_params: float, read_bytes_per_s: BytesPerSecond, write_bytes_per_s: BytesPerSecond) -> Seconds:
    """Time to read the optimizer states from drives and write them back: 12 bytes per parameter each way.

    Source: Rajbhandari et al. 2021 (ZeRO-Infinity), arXiv:2104.07857, section 4.
    Assumes: rates of all drives of the node together; reading and writing do not overlap.

    >>> round(nvme_step_s(num_params=1e9, read_bytes_per_s=12e9, write_bytes_per_s=8e9), 2)
    2.5
    """
    moved = num_params * NVME_BYTES_PER_PARAM_ONE_WAY
    return moved / read_bytes_per_s + moved / write_bytes_per_s

"""How much a collective and computation slow each other down while both run.

Kernels of a collective take multiprocessors and memory bandwidth from those that compute, and wait for them in turn.
The ratio is for the time in which both run: two tasks that take T alone and start together end after ``ratio * T``.
"""

from shardwise.cluster import Gpu
from shardwise.predict.group_placement import GroupPlacement

SCALE_UP_SLOWDOWN = 1.50
"""Slowdown inside one NVLink domain. Measured on 2 and 4 H100: equal times of matrix products and of all-gathers,
reduce-scatters or all-reduces of 256 MiB, started together, take 1.41 to 1.59 times as long as either alone, 1.50 in
the mean of the six (``benchmarks/results/2026-11-27-h100-contention.csv``). Such a pair says how long both take, not
which of them suffers, so both take the same ratio."""
NETWORK_SLOWDOWN = 1.126
"""Slowdown across a network or PCIe, where a collective waits for the wire and needs less of the device: no measurement
of ours; PKU-DAIR/Hetu-Galvatron ships 1.126 for the overlapped time, Calculon takes 1.02 for InfiniBand."""

EXCHANGE_SMS = 20
"""Multiprocessors that DeepEP's kernels hold (arXiv:2412.19437, section 3.2.2; the default of its ``Buffer``). In the
published trace of DualPipe on H800 the products beside them start 112 blocks on 132 (deepseek-ai/profile-data@4496024
``train.json``, 2025-03), and grouped 8-bit ones take 1.19 times as long as predicted alone, where 132 / 112 is 1.18."""


def slowdown_beside_exchange(gpu: Gpu) -> float:
    """How many times longer computation takes on the multiprocessors that DeepEP's kernels leave to it."""
    return gpu.sm_count / (gpu.sm_count - EXCHANGE_SMS) if gpu.sm_count > 2 * EXCHANGE_SMS else NETWORK_SLOWDOWN


def slowdown_ratio(placement: GroupPlacement) -> float:
    """How many times longer a group's collectives and computation take while both run.

    Ranks that reach each other over several levels wait for the slowest of them. Groups inside a calibrated host take
    the calibration's ratio.
    """
    calibration = placement.calibration
    if calibration is not None and calibration.overlap_slowdown_ratio is not None and placement.num_hosts == 1:
        return calibration.overlap_slowdown_ratio
    is_scale_up = placement.num_domains == 1 and not placement.is_pcie
    return SCALE_UP_SLOWDOWN if is_scale_up else NETWORK_SLOWDOWN


def overlapped_s(*, work_s: float, hidden_s: float, ratio: float) -> float:
    """Time of two tasks that start together and slow each other by a ratio while both run.

    The shorter one ends after ``ratio`` times its own time; of the longer one that leaves the difference.

    >>> overlapped_s(work_s=3.0, hidden_s=2.0, ratio=1.5)
    4.0
    """
    return max(work_s, hidden_s) + (ratio - 1) * min(work_s, hidden_s)

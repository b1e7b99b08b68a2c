"""Simpler forms of goodput that reports use, beside the exact one of :mod:`shardwise.formulas.goodput`."""

from math import sqrt

from shardwise.units import Seconds


def young_interval_s(*, blocking_s: Seconds, mtbf_s: Seconds) -> Seconds:
    """Checkpoint interval that wastes least, to first order: ``sqrt(2 delta M)``.

    Source: Young 1974, CACM 17(9).
    Assumes: delta much smaller than M; delta is the time training is blocked, not the time until the file is safe.

    >>> round(young_interval_s(blocking_s=30, mtbf_s=3.09 * 3600) / 60, 1)
    13.6
    """
    return sqrt(2 * blocking_s * mtbf_s)


def first_order_loss(*, interval_s: Seconds, blocking_s: Seconds, restart_s: Seconds, mtbf_s: Seconds) -> float:
    """Lost share to first order: ``delta / tau + (tau / 2 + R) / M``.

    Source: Young 1974, CACM 17(9), with a restart term.
    Assumes: all terms small; at 25 % loss it is already three points too high.

    >>> round(first_order_loss(interval_s=816, blocking_s=30, restart_s=600, mtbf_s=3.09 * 3600), 3)
    0.127
    """
    return blocking_s / interval_s + (interval_s / 2 + restart_s) / mtbf_s


def effective_training_time_ratio(
    *, interval_s: Seconds, blocking_s: Seconds, restart_s: Seconds, mtbf_s: Seconds
) -> float:
    """Expected ETTR: ``(1 - (R + tau / 2) / M) / (1 + delta / tau)``.

    Source: Kokolis et al. 2024 (Meta RSC), arXiv:2410.21680, section on ETTR.
    Assumes: first order in the failure rate.

    >>> round(effective_training_time_ratio(interval_s=3600, blocking_s=300, restart_s=600, mtbf_s=86400), 3)
    0.897
    """
    return (1 - (restart_s + interval_s / 2) / mtbf_s) / (1 + blocking_s / interval_s)

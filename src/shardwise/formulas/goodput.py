"""Share of the wall time that moves training forward, when checkpoints block and machines fail."""

from math import exp, sqrt

from shardwise.units import SECONDS_PER_DAY, Seconds


def job_mtbf_s(*, num_nodes: int, failures_per_node_day: float) -> Seconds:
    """Mean time between failures of a job: one over the failure rate of all its nodes.

    Source: Kokolis et al. 2024 (Meta RSC), arXiv:2410.21680; Llama 3 405B (arXiv:2407.21783, table 5): 419 unexpected
        interruptions in 54 days on 2,048 nodes = 3.79e-3 per node-day.
    Assumes: independent failures at a constant rate; any of them stops the job.

    >>> round(job_mtbf_s(num_nodes=2048, failures_per_node_day=3.789e-3) / 3600, 2)
    3.09
    """
    return SECONDS_PER_DAY / (num_nodes * failures_per_node_day)


def daly_interval_s(*, blocking_s: Seconds, mtbf_s: Seconds) -> Seconds:
    """Checkpoint interval by Daly's higher-order estimate.

    ``sqrt(2 d M) (1 + sqrt(d / 2M) / 3 + (d / 2M) / 9) - d`` while ``d < 2M``, else M.

    Source: Daly 2006, FGCS 22(3), equation 37.
    Assumes: exponential failures.

    >>> round(daly_interval_s(blocking_s=30, mtbf_s=3.09 * 3600) / 60, 1)
    13.3
    """
    if blocking_s >= 2 * mtbf_s:
        return mtbf_s
    ratio = blocking_s / (2 * mtbf_s)
    return sqrt(2 * blocking_s * mtbf_s) * (1 + sqrt(ratio) / 3 + ratio / 9) - blocking_s


def exponential_goodput(*, interval_s: Seconds, blocking_s: Seconds, restart_s: Seconds, mtbf_s: Seconds) -> float:
    """Expected useful share, exact for exponential failures: ``tau / ((M + R)(e^{(tau + delta)/M} - 1))``.

    Args:
        interval_s: tau, useful time between checkpoints.
        blocking_s: delta, time a checkpoint blocks training.
        restart_s: R, time from a failure until training runs again.
        mtbf_s: M, mean time between failures of the job.

    Source: Daly 2006, FGCS 22(3), equation 20 (the model before its approximations); Monte Carlo agrees within 0.1 %.
    Assumes: failures can also strike during checkpoints and restarts; work since the last checkpoint is lost.

    >>> round(1 - exponential_goodput(interval_s=816, blocking_s=30, restart_s=600, mtbf_s=3.09 * 3600), 3)
    0.119
    """
    return interval_s / ((mtbf_s + restart_s) * (exp((interval_s + blocking_s) / mtbf_s) - 1))

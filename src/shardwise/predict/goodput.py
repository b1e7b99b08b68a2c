"""Share of wall time that moves training forward, as a band.

A job loses time to failures, restarts, checkpoints and, at worst, to a slow host, which published rates give; and to
what no failure rate holds: evaluation, batches that ramp up, data that is skipped or repeated after a spike, nodes that
are looked for. Of large jobs whole-run shares are published, and a prediction is never above the middle of them.
"""

from dataclasses import dataclass
from statistics import median

from shardwise.formulas.goodput import daly_interval_s, exponential_goodput, job_mtbf_s
from shardwise.units import Seconds

GPUS_PER_FAILURE_NODE = 8
"""Published failure rates are per node of eight GPUs."""
MIN_FRACTION = 1e-3
"""Lowest goodput: below it failures outrun restarts and the job does not finish; the floor keeps the figures finite."""
MAX_EXPONENT = 50.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Reliability:
    """How often an eight-GPU node stops the job, and what a failure and a checkpoint cost."""

    failures_per_node_day: float
    restart_s: Seconds
    """Seconds from a failure until training runs again."""
    blocking_s: Seconds
    """Seconds that one checkpoint holds training up; not the time until the file is safe."""
    slow_host_fraction: float = 0.0
    """How much longer steps of several nodes take while the slowest host is in the job, which nobody has found yet."""
    description: str


TYPICAL = Reliability(
    failures_per_node_day=5e-3,
    restart_s=600.0,
    blocking_s=6.3,
    description="5 failures per 1,000 node-days (Meta RSC's model; Llama 3 405B saw 3.8), 10 minutes to restart, "
    "6.3 s blocked by an asynchronous checkpoint (PyTorch DCP, 7B)",
)
GOOD = Reliability(
    failures_per_node_day=2.34e-3,
    restart_s=300.0,
    blocking_s=0.59,
    description="2.34 per 1,000 node-days (Meta RSC-2), 5 minutes, 0.59 s (ByteCheckpoint, 405B)",
)
POOR = Reliability(
    failures_per_node_day=6.5e-3,
    restart_s=1200.0,
    blocking_s=14.0,
    slow_host_fraction=0.1,
    description="6.5 per 1,000 node-days (Meta RSC-1), 20 minutes, 14 s (PyTorch DCP, slowest)",
)
"""All figures are rows of ``catalog/hardware/data/reliability.csv``. The OPT-175B logbook's 15.6 per 1,000 node-days
lies outside the band."""


SLOW_HOST_SENTENCE = f"a host that is {POOR.slow_host_fraction:.0%} slower (MegaScale)"
WHOLE_RUN_GPUS = 1024
"""Published whole-run shares are those of jobs of this size and more (Meta RSC's are those above it)."""
WHOLE_RUNS: tuple[tuple[str, float], ...] = (
    ("OPT-175B", 0.59),
    ("Meta RSC, jobs above 1,024 GPUs", 0.90),
    ("Llama 3 405B", 0.90),
    ("MegaScale", 0.90),
    ("Gemini Ultra", 0.97),
    ("ByteRobust, 9,600 GPUs", 0.97),
)
"""Share of the time of a run in which it trained, from ``catalog/hardware/data/reliability.csv``; two more are
Gemini's (arXiv:2312.11805, section 5.1: 97 %, 85 % before) and ByteRobust's (arXiv:2509.16293: 97 % over three months).
OPT-175B took 56 days for what 147 TFLOP/s on 992 GPUs, recomputation counted, do in 33 (arXiv:2205.01068, sections 2.4
and 2.5)."""
TYPICAL_WHOLE_RUN = median(share for _, share in WHOLE_RUNS)
WORST_WHOLE_RUN = min(share for _, share in WHOLE_RUNS)
WHOLE_RUN_SENTENCE = "the middle of six published whole runs (59 % OPT-175B to 97 % Gemini Ultra and ByteRobust)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Goodput:
    """Useful share of the wall time of a job, with the band that published failure rates leave."""

    fraction: float
    low_fraction: float
    high_fraction: float
    mtbf_s: Seconds
    """Mean time between failures at the typical rate."""
    checkpoint_interval_s: Seconds
    """The interval that wastes least at the typical rate."""


def predict_goodput(*, num_gpus: int) -> Goodput:
    """Goodput of a job that checkpoints at the best interval (Daly) on ``num_gpus`` GPUs."""
    mtbf_s = _mtbf_s(TYPICAL, num_gpus)
    is_large = num_gpus >= WHOLE_RUN_GPUS
    most, most_at_worst = (TYPICAL_WHOLE_RUN, WORST_WHOLE_RUN) if is_large else (1.0, 1.0)
    return Goodput(
        fraction=min(goodput_fraction(TYPICAL, num_gpus=num_gpus), most),
        low_fraction=min(goodput_fraction(POOR, num_gpus=num_gpus), most_at_worst),
        high_fraction=goodput_fraction(GOOD, num_gpus=num_gpus),
        mtbf_s=mtbf_s,
        checkpoint_interval_s=daly_interval_s(blocking_s=TYPICAL.blocking_s, mtbf_s=mtbf_s),
    )


def may_wait_for_hosts(num_gpus: int) -> bool:
    """Whether a job has several hosts, of which the slowest holds up the others."""
    return num_gpus > GPUS_PER_FAILURE_NODE


def goodput_fraction(reliability: Reliability, *, num_gpus: int) -> float:
    """Goodput at one failure rate, with the checkpoint interval that suits it."""
    mtbf_s = _mtbf_s(reliability, num_gpus)
    interval_s = daly_interval_s(blocking_s=reliability.blocking_s, mtbf_s=mtbf_s)
    if interval_s + reliability.blocking_s > MAX_EXPONENT * mtbf_s:
        return MIN_FRACTION
    fraction = exponential_goodput(
        interval_s=interval_s,
        blocking_s=reliability.blocking_s,
        restart_s=reliability.restart_s,
        mtbf_s=mtbf_s,
    )
    waits = reliability.slow_host_fraction if may_wait_for_hosts(num_gpus) else 0.0
    return max(MIN_FRACTION, fraction / (1 + waits))


def _mtbf_s(reliability: Reliability, num_gpus: int) -> Seconds:
    nodes = max(1, -(-num_gpus // GPUS_PER_FAILURE_NODE))
    return job_mtbf_s(num_nodes=nodes, failures_per_node_day=reliability.failures_per_node_day)

"""Share of wall time that moves training forward, as a band.

Two independent losses are multiplied. Failures, restarts and checkpoints follow from published rates, and grow with the
number of GPUs. What no failure rate holds is one share for every size: batches that ramp up, evaluation, steps repeated
after a spike, slow hosts, restarts by hand. Whole runs publish it: it is what their time lacks beside their steps and
such failures.
"""

from dataclasses import dataclass
from statistics import median, quantiles

from shardwise.formulas.goodput import daly_interval_s, exponential_goodput, job_mtbf_s
from shardwise.predict.time_band import independent_ratios
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
    description="6.5 per 1,000 node-days (Meta RSC-1), 20 minutes, 14 s (PyTorch DCP, slowest)",
)
"""All figures are rows of ``catalog/hardware/data/reliability.csv``. The OPT-175B logbook's 15.6 per 1,000 node-days
lies outside the band."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeRun:
    """A run that says how much of its time were steps."""

    name: str
    num_gpus: int
    step_fraction: float
    """Steps at the rate that the source prints, over the time it prints; or the share that it calls effective."""


WHOLE_RUNS = (
    WholeRun(name="OPT-175B", num_gpus=992, step_fraction=0.59),
    WholeRun(name="PaLM 540B", num_gpus=6144, step_fraction=0.665),
    WholeRun(name="Llama 3.1 405B", num_gpus=16_384, step_fraction=0.856),
    WholeRun(name="BLOOM-176B", num_gpus=384, step_fraction=0.894),
    WholeRun(name="BloombergGPT", num_gpus=512, step_fraction=0.988),
    WholeRun(name="SmolLM3", num_gpus=384, step_fraction=1.0),
    WholeRun(name="Gemini Ultra", num_gpus=4096, step_fraction=0.97),
    WholeRun(name="ByteRobust", num_gpus=9600, step_fraction=0.97),
)
"""OPT-175B took 56 days for what 147 TFLOP/s on 992 GPUs, recomputation counted, do in 33 (arXiv:2205.01068, sections
2.4 and 2.5). PaLM's 8.40M TPU v4 hours hold "some downtime and repeated steps" and smaller batches (arXiv:2204.02311,
section 4.1 and appendix B); its 780B tokens at 45.7 % MFU without attention are 5.59M. Llama 3.1 405B's 30.84M hours
(model card) were 26.4M at 400 TFLOP/s (arXiv:2407.21783, table 4); its batch grew twice. BLOOM ran 118.24 days for
87,262 steps of 104.7 s (bigscience-workshop/bigscience ``train/tr11-176B-ml/README.md``), BloombergGPT 53 for 139,200
of 32.5 s (arXiv:2303.17564), SmolLM3 24 for 11.2T tokens at 14,000 a second and GPU (tzafon.ai, 2025-07). Gemini says
97 % on pods of 4,096 chips (arXiv:2312.11805, section 5.1), ByteRobust 97 % over three months (arXiv:2509.16293)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Goodput:
    """Useful share of the wall time of a job, with the band that published failure rates and whole runs leave."""

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
    poor, typical, good = (goodput_fraction(rate, num_gpus=num_gpus) for rate in (POOR, TYPICAL, GOOD))
    low, other, high = other_fractions()
    longer = independent_ratios([(typical / good, typical / poor), (other / high, other / low)])
    fraction = max(MIN_FRACTION, typical * other)
    return Goodput(
        fraction=fraction,
        low_fraction=max(MIN_FRACTION, fraction / longer[1]),
        high_fraction=min(good, fraction / longer[0]),
        mtbf_s=mtbf_s,
        checkpoint_interval_s=daly_interval_s(blocking_s=TYPICAL.blocking_s, mtbf_s=mtbf_s),
    )


def other_fractions() -> tuple[float, float, float]:
    """Share of the time that is left by what is no failure, in published whole runs: 5th percentile, median, 95th."""
    left = [_other_fraction(run) for run in WHOLE_RUNS]
    twentieths = quantiles(left, n=20, method="inclusive")
    return twentieths[0], median(left), twentieths[-1]


def _other_fraction(run: WholeRun) -> float:
    """What a run's time keeps beside typical failures of its size; one that lost less than those lost nothing else."""
    return min(1.0, run.step_fraction / goodput_fraction(TYPICAL, num_gpus=run.num_gpus))


def other_losses_sentence() -> str:
    """What is lost besides failures, in words."""
    low, other, _ = other_fractions()
    return (
        f"batch ramps, evaluation, repeated steps, slow hosts and restarts by hand take {1 - other:.1%} more, the "
        f"middle of {len(WHOLE_RUNS)} published whole runs of 384 to 16,384 GPUs (0 to {1 - low:.0%})"
    )


def goodput_fraction(reliability: Reliability, *, num_gpus: int) -> float:
    """Share that failures, restarts and checkpoints leave at one rate, with the checkpoint interval that suits it."""
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
    return max(MIN_FRACTION, fraction)


def _mtbf_s(reliability: Reliability, num_gpus: int) -> Seconds:
    nodes = max(1, -(-num_gpus // GPUS_PER_FAILURE_NODE))
    return job_mtbf_s(num_nodes=nodes, failures_per_node_day=reliability.failures_per_node_day)

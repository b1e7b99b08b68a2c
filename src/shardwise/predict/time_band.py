"""How far a measured step may lie from the predicted one, by what is known of the part, the engine and the work.

The figures are residuals (measured over predicted step time, 5th and 95th percentile) of runs that are never reported:
the families that ``validate`` prints as fitted, and our own trainer's first runs. ``shardwise.validate.band_residuals``
computes them, and tests hold them together. A plan has the widest band of all that is doubtful about it. What has
another cause, the pace of the host, the rate of links, an attention kernel that was never timed, is independent of it:
the logarithms add up as squares.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import exp, hypot, log

from shardwise.engines.table import engine_profile
from shardwise.plan import Plan
from shardwise.predict.kernel_rates import attention_origin
from shardwise.predict.product_rates import product_rates
from shardwise.recipe import Precision
from shardwise.step.attention_kernel import attention_kernel, writes_scores
from shardwise.step.native_engine import is_native_engine

Ratios = tuple[float, float]
"""Lowest and highest measured over predicted step time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BandReason:
    """One thing that decides the band."""

    name: str
    """Key of the residuals it comes from."""
    low_ratio: float
    """Measured over predicted step time."""
    high_ratio: float
    sentence: str


OWN_TRAINER = BandReason(
    name="own trainer",
    low_ratio=0.92,
    high_ratio=1.13,
    sentence="our own trainer's kernels and steps were timed on its architecture",
)
"""30 dense 16-bit runs on two H200 of 2026-11-28, eager and compiled, none over tensor or pipeline parallelism alone
(``benchmarks/own_runs.py``)."""
TIMED = BandReason(
    name="timed", low_ratio=0.81, high_ratio=1.18, sentence="matrix products were timed on its architecture"
)
FSDP1 = BandReason(
    name="fsdp1",
    low_ratio=0.91,
    high_ratio=1.20,
    sentence="loops around FSDP1 leave much to kernels that differ from one to the next",
)
SPECIFICATION = BandReason(
    name="specification",
    low_ratio=0.81,
    high_ratio=1.66,
    sentence="no products of layers were timed on its architecture",
)
"""Its four runs are all slower than predicted (1.37 and more): the low side is that of parts known better."""
EIGHT_BITS = BandReason(
    name="8 bits", low_ratio=0.72, high_ratio=1.00, sentence="8-bit products and their casts differ by recipe"
)
EXPERTS = BandReason(
    name="experts",
    low_ratio=0.80,
    high_ratio=1.61,
    sentence="the exchange between experts depends on routing and on the library that sends tokens",
)
OWN_TABLES = ("h100-sxm",)
"""Tables of products of the architectures on which our trainer ran: Hopper's."""
NARROW_PRECISIONS: tuple[Precision, ...] = ("fp8-mixed",)


def part_reason(plan: Plan) -> BandReason:
    """How the part's kernels and the engine's steps are known."""
    table = product_rates(plan.cluster.gpu).table
    if not table:
        return SPECIFICATION
    if is_native_engine(plan) and table in OWN_TABLES and not plan.model.is_moe:
        return OWN_TRAINER
    return FSDP1 if engine_profile(plan.engine).sharding == "fsdp1" else TIMED


def band_reasons(plan: Plan) -> Iterator[BandReason]:
    """Everything that widens the band of a plan, the part first."""
    yield part_reason(plan)
    if plan.recipe.precision in NARROW_PRECISIONS and plan.cluster.gpu.peak_flop_per_s("fp8"):
        yield EIGHT_BITS
    if plan.model.is_moe and plan.layout.ep > 1:
        yield EXPERTS


def band_ratios(plan: Plan) -> Ratios:
    """The widest band of everything that is doubtful about a plan, before the pace of the host."""
    reasons = tuple(band_reasons(plan))
    return min(reason.low_ratio for reason in reasons), max(reason.high_ratio for reason in reasons)


def independent_ratios(ratios: Iterable[Ratios]) -> Ratios:
    """The band of several causes that are independent: their logarithms add up as squares.

    >>> [round(ratio, 3) for ratio in independent_ratios([(0.9, 1.2), (1.0, 1.0)])]
    [0.9, 1.2]
    >>> [round(ratio, 3) for ratio in independent_ratios([(0.9, 1.2), (0.8, 1.1)])]
    [0.781, 1.228]
    """
    lows, highs = zip(*ratios, strict=True)
    return exp(-hypot(*(log(low) for low in lows))), exp(hypot(*(log(high) for high in highs)))


def band_sentences(plan: Plan) -> Iterator[str]:
    """Why the band is as wide as it is, where it is wider than that of dense 16-bit steps on a part that was timed."""
    reasons = tuple(band_reasons(plan))
    if reasons in ((TIMED,), (OWN_TRAINER,)):
        return
    low, high = band_ratios(plan)
    said = "; ".join(reason.sentence for reason in reasons)
    yield f"the band of {low:.2f} to {high:.2f} of the step time is that of runs never reported: {said}"


def is_attention_doubted(plan: Plan) -> bool:
    """Whether fused attention runs on an architecture that neither its kernel nor one like it was timed on."""
    if plan.model.attention is None or writes_scores(plan):
        return False
    return attention_origin(attention_kernel(plan), plan.cluster.gpu.arch).borrowed_from != ""

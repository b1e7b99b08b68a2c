"""How far a measured step may lie from the predicted one, by what is known of the part and the work.

The figures are residuals (measured over predicted step time, 5th and 95th percentile) of runs that are never reported:
the families that ``validate`` prints as fitted, and runs with a gap. ``shardwise.validate.band_residuals`` computes
them and a test holds the two together. Every reason widens the band; what is missing gives a wider one and a sentence.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from shardwise.plan import Plan
from shardwise.predict.kernel_rates import attention_origin
from shardwise.predict.product_rates import product_rates
from shardwise.recipe import Precision
from shardwise.step.attention_kernel import attention_kernel, writes_scores


@dataclass(frozen=True, slots=True, kw_only=True)
class BandReason:
    """One thing that decides the band."""

    name: str
    """Key of the residuals it comes from."""
    low_ratio: float
    """Measured over predicted step time."""
    high_ratio: float
    sentence: str


MEASURED = BandReason(
    name="measured", low_ratio=0.90, high_ratio=1.27, sentence="its matrix products were timed on this part"
)
BORROWED = BandReason(
    name="borrowed",
    low_ratio=0.90,
    high_ratio=1.46,
    sentence="its matrix products are scaled from another part of its architecture",
)
SPECIFICATION = BandReason(
    name="specification",
    low_ratio=0.90,
    high_ratio=1.66,
    sentence="no kernels of its architecture were timed, only its peak is known",
)
"""Its four runs are all slower than predicted (1.37 and more): the low side is that of parts known better."""
EIGHT_BITS = BandReason(
    name="8 bits", low_ratio=0.70, high_ratio=1.58, sentence="8-bit products and their casts differ by recipe"
)
EXPERTS = BandReason(
    name="experts",
    low_ratio=0.60,
    high_ratio=1.61,
    sentence="the exchange between experts depends on routing and on the library that sends tokens",
)
SMALL_BLOCKS = BandReason(
    name="small blocks",
    low_ratio=0.80,
    high_ratio=1.17,
    sentence="blocks this narrow were up to a fifth faster than predicted on A100",
)
SMALL_HIDDEN_SIZE = 2048
"""The widest blocks of the runs that the band of small blocks comes from."""
NARROW_PRECISIONS: tuple[Precision, ...] = ("fp8-mixed",)


def hardware_reason(plan: Plan) -> BandReason:
    """How the part's matrix products are known."""
    gpu = plan.cluster.gpu
    table = product_rates(gpu).table
    if not table:
        return SPECIFICATION
    return MEASURED if table == gpu.id else BORROWED


def band_reasons(plan: Plan) -> Iterator[BandReason]:
    """Everything that widens the band of a plan, the part first."""
    yield hardware_reason(plan)
    if plan.model.hidden_size <= SMALL_HIDDEN_SIZE:
        yield SMALL_BLOCKS
    if plan.recipe.precision in NARROW_PRECISIONS and plan.cluster.gpu.peak_flop_per_s("fp8"):
        yield EIGHT_BITS
    if plan.model.is_moe and plan.layout.ep > 1:
        yield EXPERTS


def band_ratios(plan: Plan) -> tuple[float, float]:
    """Lowest and highest step time over the predicted one, before the pace of the host."""
    reasons = tuple(band_reasons(plan))
    return min(reason.low_ratio for reason in reasons), max(reason.high_ratio for reason in reasons)


def band_sentences(plan: Plan) -> Iterator[str]:
    """Why the band is as wide as it is, where it is wider than on a part that is known well."""
    if tuple(band_reasons(plan)) == (MEASURED,):
        return
    low, high = band_ratios(plan)
    reasons = "; ".join(reason.sentence for reason in band_reasons(plan))
    yield f"the band of {low:.2f} to {high:.2f} of the step time is that of runs never reported: {reasons}"


def is_attention_doubted(plan: Plan) -> bool:
    """Whether fused attention runs on an architecture that neither its kernel nor one like it was timed on."""
    if plan.model.attention is None or writes_scores(plan):
        return False
    return attention_origin(attention_kernel(plan), plan.cluster.gpu.arch).borrowed_from != ""

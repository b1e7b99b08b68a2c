"""Judges a reported rate of training: which convention it follows, how it compares to a prediction, and why it differs.

A source prints tokens per second, TFLOP/s, MFU or seconds, and seldom says what it counted. Each reading takes one way
of counting FLOP and one peak, and says what the tokens per second and our own MFU would then be.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from shardwise.cluster import Gpu
from shardwise.explain.likely_causes import LikelyCause, likely_causes
from shardwise.explain.records import Finding
from shardwise.explain.utilisation import IMPLAUSIBLE_FRACTION, SPARSITY_RATIO, explain_utilisation
from shardwise.formulas.flop_counts import six_n_flop_per_token
from shardwise.plan import Plan
from shardwise.predict.cost import training_peak
from shardwise.predict.model_flop import model_flop_per_token, plan_flop_per_token
from shardwise.predict.published import BestRun, best_published
from shardwise.prediction import Prediction
from shardwise.units import Flop, FlopPerSecond

__all__ = ["Judgement", "RateReading", "ReportedUnit", "judge_rate", "judge_without_model"]

ReportedUnit = Literal["tokens_per_s", "flop_per_s", "mfu_fraction", "step_s"]
"""Tokens per second and FLOP per second are those of one GPU."""

SLOW_RATIO = 0.5
"""Below this share of the prediction another convention explains a figure better than a slow run."""
RECOMPUTED_RATIO, FROZEN_RECOMPUTED_RATIO = 4 / 3, 3 / 2
"""FLOP with every forward pass counted twice, over those of the model: 8 N over 6 N, or 6 N over 4 N of frozen weights.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RateReading:
    """A reported figure by one convention."""

    counted: str
    """The FLOP that are counted for a token, in words."""
    divided_by: str
    """The peak that an MFU divides by: dense or sparse."""
    tokens_per_s_per_gpu: float
    stated_flop_per_s: FlopPerSecond
    """FLOP per second and GPU as this convention counts them."""
    stated_mfu_fraction: float
    """MFU as this convention states it."""
    mfu_fraction: float
    """MFU by our convention: causal attention counted once, over the dense peak."""
    predicted_ratio: float
    """Tokens per second over the predicted ones."""
    is_possible: bool
    """Whether training has ever come near such a share of the peak."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """All there is to say about one reported figure."""

    unit: ReportedUnit
    reported_amount: float
    gpu_name: str
    findings: tuple[Finding, ...]
    """The share of the dense peak, and which wrong divisor explains another share."""
    sparse_fraction: float
    """The share of the peak with 2:4 sparsity, which training does not use and data sheets print first."""
    readings: tuple[RateReading, ...] = ()
    """The likeliest first; none without a model."""
    plan: Plan | None = None
    prediction: Prediction | None = None
    causes: tuple[LikelyCause, ...] = ()
    """In the order in which an engineer checks them; none within 5 % of the predicted rate."""
    best: BestRun | None = None

    @property
    def is_in_band(self) -> bool:
        """Whether the likeliest reading lies inside the band of the predicted step time."""
        if self.prediction is None:
            return False
        time, ratio = self.prediction.time, self.readings[0].predicted_ratio
        return time.step_s / time.step_high_s <= ratio <= time.step_s / time.step_low_s


def judge_without_model(*, gpu: Gpu, unit: ReportedUnit, amount: float) -> Judgement:
    """A rate in FLOP, or an MFU, of a part whose model is not known."""
    dtype, peak = training_peak(gpu)
    achieved = amount * peak if unit == "mfu_fraction" else amount
    findings = explain_utilisation(gpu=gpu, dtype=dtype, achieved_flop_per_s=achieved)
    sparse = achieved / peak / SPARSITY_RATIO
    return Judgement(unit=unit, reported_amount=amount, gpu_name=gpu.name, findings=findings, sparse_fraction=sparse)


def judge_rate(*, plan: Plan, prediction: Prediction, unit: ReportedUnit, amount: float) -> Judgement:
    """A reported figure beside the prediction of a plan.

    Args:
        plan: what ran, or what would be recommended.
        prediction: of the plan.
        unit: of the report.
        amount: of one GPU, except seconds, which are those of a step of the plan.
    """
    dtype, peak = training_peak(plan.cluster.gpu)
    found = _readings(plan, prediction, unit, amount, peak)
    readings = tuple(sorted(found, key=lambda reading: _unlikeliness(reading, prediction)))
    likely = readings[0]
    findings = explain_utilisation(
        gpu=plan.cluster.gpu,
        dtype=dtype,
        achieved_flop_per_s=likely.stated_flop_per_s,
        peak_used_flop_per_s=_peak(likely.divided_by, peak) if unit == "mfu_fraction" else None,
    )
    return Judgement(
        unit=unit,
        reported_amount=amount,
        gpu_name=plan.cluster.gpu.name,
        findings=findings,
        sparse_fraction=likely.stated_flop_per_s / peak / SPARSITY_RATIO,
        readings=readings,
        plan=plan,
        prediction=prediction,
        best=best_published(plan),
        causes=likely_causes(plan, prediction, likely.tokens_per_s_per_gpu),
    )


def _peak(divided_by: str, dense: FlopPerSecond) -> FlopPerSecond:
    return dense * (SPARSITY_RATIO if divided_by == "sparse" else 1.0)


def _readings(
    plan: Plan, prediction: Prediction, unit: ReportedUnit, amount: float, peak: FlopPerSecond
) -> Iterator[RateReading]:
    """Read the figure by every way of counting FLOP and, where it is a share of a peak, by both peaks."""
    peaks = ("dense", "sparse") if unit == "mfu_fraction" else ("dense",)
    counts = _flop_counts(plan)
    for words, per_token in counts:
        for divided_by in peaks:
            divisor = _peak(divided_by, peak)
            tokens = _tokens_per_s(plan, unit, amount, per_token=per_token, divisor=divisor)
            share = tokens * counts[0][1] / peak
            yield RateReading(
                counted=words,
                divided_by=divided_by,
                tokens_per_s_per_gpu=tokens,
                stated_flop_per_s=tokens * per_token,
                stated_mfu_fraction=tokens * per_token / divisor,
                mfu_fraction=share,
                predicted_ratio=tokens / prediction.throughput.tokens_per_s_per_gpu,
                is_possible=share <= IMPLAUSIBLE_FRACTION,
            )


def _flop_counts(plan: Plan) -> tuple[tuple[str, Flop], ...]:
    """FLOP of a token as people count them, that of the prediction first."""
    model, is_frozen = plan.model, plan.recipe.adapter != "none"
    ours = plan_flop_per_token(plan)
    square = model_flop_per_token(model, seq_len=plan.recipe.seq_len, is_base_frozen=is_frozen, has_whole_square=True)
    return (
        ("model FLOP, causal attention once", ours),
        ("model FLOP, the whole square of attention", square),
        ("6 N, no attention", six_n_flop_per_token(num_params=model.num_active_params)),
        ("with everything recomputed", ours * (FROZEN_RECOMPUTED_RATIO if is_frozen else RECOMPUTED_RATIO)),
    )


def _tokens_per_s(plan: Plan, unit: ReportedUnit, amount: float, *, per_token: Flop, divisor: FlopPerSecond) -> float:
    """Tokens per second and GPU that a figure stands for."""
    if unit == "tokens_per_s":
        return amount
    if unit == "step_s":
        return plan.tokens_per_step / amount / plan.layout.world_size
    return (amount if unit == "flop_per_s" else amount * divisor) / per_token


def _unlikeliness(reading: RateReading, prediction: Prediction) -> tuple[bool, bool, bool, bool]:
    """Impossible shares last, then rates above the predicted band, then those below half of it, then the sparse peak.

    Ways of counting keep their order, ours first.
    """
    time = prediction.time
    is_too_fast = reading.predicted_ratio > time.step_s / time.step_low_s
    is_too_slow = reading.predicted_ratio < SLOW_RATIO
    return not reading.is_possible, is_too_fast, is_too_slow, reading.divided_by == "sparse"

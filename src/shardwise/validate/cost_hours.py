"""GPU-hours of a published run, from what its source states of model, tokens, hardware and rate."""

from dataclasses import dataclass

from shardwise.cluster import Gpu
from shardwise.formulas.flop_counts import six_n_flop_per_token
from shardwise.plan import Plan
from shardwise.predict.cost_sensitivity import published_mfu
from shardwise.predict.goodput import predict_goodput
from shardwise.predict.time_band import independent_ratios
from shardwise.units import SECONDS_PER_DAY, SECONDS_PER_HOUR, Flop, FlopPerSecond
from shardwise.validate.cost_facts import CostFacts, Span, span
from shardwise.validate.rows import MeasurementRow

HOURS_PER_DAY = SECONDS_PER_DAY / SECONDS_PER_HOUR
DEFAULT_MFU_BASIS = "the default MFU"
OWN_RATE_BASIS = "the source's rate"
SETUP_BASIS = "a predicted step of its set-up"
UNSTATED_GPUS = 2048
"""Assumed for goodput alone where the source does not say how many; a job of 512 differs by a point."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hours:
    """GPU-hours with the band that the stated inputs leave."""

    middle_gpu_hours: float
    low_gpu_hours: float
    high_gpu_hours: float
    basis: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StatedRun:
    """One run as its source states it."""

    row: MeasurementRow
    facts: CostFacts
    gpu: Gpu
    num_gpus: int | None

    @property
    def tokens(self) -> Span | None:
        """Training tokens as the source prints them."""
        printed = self.row.number("tokens")
        return self.facts.tokens or (None if printed is None else Span(low=printed, high=printed))

    @property
    def flop_per_token(self) -> Flop | None:
        """FLOP per token as our MFU counts them; ``6 N`` where the catalogue lacks the model or its length is open."""
        num_params = self.row.number("n_active_params") or self.row.number("n_params")
        plain = None if num_params is None else six_n_flop_per_token(num_params=num_params)
        return self.facts.flop_per_token or plain

    @property
    def peak_flop_per_s(self) -> FlopPerSecond:
        """Peak of one GPU for 16-bit products."""
        return self.gpu.peak_flop_per_s("bf16") or self.gpu.peak_flop_per_s("fp16") or 0.0

    @property
    def goodput(self) -> tuple[float, float, float]:
        """Likely, lowest and highest share of the hours that steps take."""
        stated = self.facts.goodput_fraction
        if stated is not None:
            return stated, stated, stated
        predicted = predict_goodput(num_gpus=self.num_gpus or UNSTATED_GPUS)
        return predicted.fraction, predicted.low_fraction, predicted.high_fraction

    def implied_mfu_fraction(self, hours: float) -> float | None:
        """The MFU at which the whole run would have taken so many GPU-hours."""
        if self.tokens is None or self.flop_per_token is None or not self.peak_flop_per_s:
            return None
        return self.tokens.middle * self.flop_per_token / (hours * SECONDS_PER_HOUR * self.peak_flop_per_s)


def predicted_hours(run: StatedRun) -> Hours | None:
    """GPU-hours by the source's own rate, a step of its set-up, its own MFU or the default one.

    ``None`` without parameters or tokens.
    """
    tokens, rate, plan = run.tokens, run.facts.tokens_per_s_per_gpu, run.facts.plan
    if tokens is None:
        return None
    if rate is not None:
        return _at_rates(run, tokens, (rate.middle, rate.low, rate.high), f"{OWN_RATE_BASIS}: tokens per second")
    if plan is not None:
        return _at_rates(run, tokens, _setup_rates(plan), SETUP_BASIS)
    if run.flop_per_token is None:
        return None
    mfu, basis = _mfu(run)
    rates = [fraction * run.peak_flop_per_s / run.flop_per_token for fraction in mfu]
    return _at_rates(run, tokens, (rates[0], rates[1], rates[2]), basis)


def _setup_rates(plan: Plan) -> tuple[float, float, float]:
    """Tokens per second of a GPU at the predicted step, and at both ends of its band."""
    from shardwise.predict.time import predict_time  # noqa: PLC0415  the model is heavy

    time, tokens = predict_time(plan)[0], plan.tokens_per_step / plan.layout.world_size
    return tokens / time.step_s, tokens / time.step_high_s, tokens / time.step_low_s


def _at_rates(run: StatedRun, tokens: Span, tokens_per_s: tuple[float, float, float], basis: str) -> Hours:
    """Tokens over the likely rate of a GPU and over goodput, whose bands are independent."""
    (rate, low_rate, high_rate), (goodput, low_goodput, high_goodput) = tokens_per_s, run.goodput
    low, high = independent_ratios(
        [(rate / high_rate, rate / low_rate), (goodput / high_goodput, goodput / low_goodput)]
    )
    hours_per_token = 1 / rate / goodput / SECONDS_PER_HOUR
    return Hours(
        middle_gpu_hours=tokens.middle * hours_per_token,
        low_gpu_hours=tokens.low * hours_per_token * low,
        high_gpu_hours=tokens.high * hours_per_token * high,
        basis=basis,
    )


def _mfu(run: StatedRun) -> tuple[tuple[float, float, float], str]:
    """Likely, lowest and highest MFU of the run, and who says so."""
    text = run.row.text("mfu_pct")
    printed = span(text)
    if printed is None:
        usual = published_mfu(run.gpu)
        return (usual.typical_fraction, usual.low_fraction, usual.high_fraction), DEFAULT_MFU_BASIS
    return (printed.middle / 100, printed.low / 100, printed.high / 100), f"{OWN_RATE_BASIS}: MFU {text} %"


def run_hours(row: MeasurementRow, *, num_gpus: int | None) -> float | None:
    """The printed GPU-hours, or the printed days of all GPUs."""
    hours, days = row.number("accelerator_hours"), row.number("wall_time_days")
    if hours is None and days is not None and num_gpus is not None:
        return days * num_gpus * HOURS_PER_DAY
    return hours

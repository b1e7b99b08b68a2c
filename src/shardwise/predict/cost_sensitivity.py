"""Which assumption moves the cost of a run most: each taken to its published ends, the others held."""

from dataclasses import dataclass

from shardwise.cluster import Gpu, Price
from shardwise.predict.goodput import Goodput
from shardwise.prediction import CostSensitivity, TimePrediction
from shardwise.units import Dollars, format_band, format_percent, format_usd


@dataclass(frozen=True, slots=True, kw_only=True)
class MfuRange:
    """The 5th, 50th and 95th percentile of published MFUs: as many runs lie between as in the band of a step."""

    arch: str
    """Beginning of an architecture's name; empty for all parts together."""
    low_fraction: float
    typical_fraction: float
    high_fraction: float
    num_runs: int

    @property
    def runs(self) -> str:
        """The runs, in words."""
        return f"{self.num_runs} published runs" + (f" on {self.arch}" if self.arch else "")


PUBLISHED_MFU = (
    MfuRange(arch="Ampere", low_fraction=0.30, typical_fraction=0.48, high_fraction=0.60, num_runs=190),
    MfuRange(arch="Hopper", low_fraction=0.18, typical_fraction=0.38, high_fraction=0.46, num_runs=103),
    MfuRange(arch="", low_fraction=0.22, typical_fraction=0.42, high_fraction=0.58, num_runs=308),
)
"""The published MFUs of ``benchmarks/published/tables/throughput.csv``, counted as ours are: causal attention once,
over the 16-bit peak (54 whose count is unknown as printed). Hopper has three times the peak of Ampere with 1.6 times
the memory bandwidth and the same hosts, so that runs reach less of it. The last row is of all parts, and stands for
those with fewer than 20 published."""
NOT_A_MARKET_PRICE = ("user", "assumed")
"""Kinds of price that say nothing about what others pay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """One assumption at both ends, each as a factor on the cost."""

    assumption: str
    basis: str
    low_ratio: float
    high_ratio: float
    moves_hours: bool = True
    """Whether it changes GPU-hours; false for a price, which changes dollars alone."""

    @property
    def ratios(self) -> tuple[float, float]:
        """Both factors, the lower one first."""
        return self.low_ratio, self.high_ratio


def published_mfu(gpu: Gpu) -> MfuRange:
    """The MFUs of published runs on parts of the same architecture, else on all parts."""
    return next(found for found in PUBLISHED_MFU if gpu.arch.startswith(found.arch))


def mfu_spread(published: MfuRange) -> Spread:
    """Cost factors at both ends of the MFUs of nine in ten published runs."""
    low, high = published.low_fraction, published.high_fraction
    return Spread(
        assumption="MFU",
        basis=f"{format_percent(high)} to {format_percent(low)}, nine in ten of {published.runs}",
        low_ratio=published.typical_fraction / high,
        high_ratio=published.typical_fraction / low,
    )


def tuning_spread(mfu_fraction: float, published: MfuRange) -> Spread | None:
    """Cost factors from a recommended plan's MFU to the lowest of nine in ten published runs.

    ``None`` where the plan's is no higher: published runs say nothing of what its tuning is worth.
    """
    low = published.low_fraction
    if mfu_fraction <= low:
        return None
    return Spread(
        assumption="tuning",
        basis=f"{format_percent(mfu_fraction)} MFU as recommended to {format_percent(low)}, the lowest of nine in "
        f"ten of {published.runs}",
        low_ratio=1.0,
        high_ratio=mfu_fraction / low,
    )


def step_time_spread(time: TimePrediction) -> Spread:
    """Cost factors at the ends of the predicted step time's band."""
    return Spread(
        assumption="step time",
        basis=f"{format_band(time.step_low_s, time.step_high_s, of_s=time.step_s)}, the prediction's band",
        low_ratio=time.step_low_s / time.step_s,
        high_ratio=time.step_high_s / time.step_s,
    )


def goodput_spread(goodput: Goodput) -> Spread:
    """Cost factors at the ends of goodput's band."""
    best, worst = format_percent(goodput.high_fraction), format_percent(goodput.low_fraction)
    return Spread(
        assumption="goodput",
        basis=f"{best} to {worst}, by published failure rates and whole runs",
        low_ratio=min(1.0, goodput.fraction / goodput.high_fraction),
        high_ratio=goodput.fraction / goodput.low_fraction,
    )


def price_spread(prices: tuple[Price, ...]) -> Spread | None:
    """Cost factors from the cheapest to the dearest price of the book; ``None`` when only one is known."""
    asked = prices[0].usd_per_gpu_hour if prices else 0.0
    market = [price.usd_per_gpu_hour for price in prices if price.kind not in NOT_A_MARKET_PRICE]
    if not asked or len(set(market)) < 2:
        return None
    low, high = min(*market, asked), max(*market, asked)
    return Spread(
        assumption="price",
        basis=f"{format_usd(low)} to {format_usd(high)} per GPU and hour, {len(market)} prices of the book",
        low_ratio=low / asked,
        high_ratio=high / asked,
        moves_hours=False,
    )


def sensitivities(
    spreads: tuple[Spread, ...], *, gpu_hours: float, usd_per_gpu_hour: Dollars | None
) -> tuple[CostSensitivity, ...]:
    """GPU hours and dollars at both ends of each spread, the widest first."""
    rows = (_sensitivity(spread, gpu_hours=gpu_hours, usd_per_gpu_hour=usd_per_gpu_hour) for spread in spreads)
    return tuple(sorted(rows, key=lambda row: (-row.swing_ratio, row.assumption)))


def _sensitivity(spread: Spread, *, gpu_hours: float, usd_per_gpu_hour: Dollars | None) -> CostSensitivity:
    usd = None if usd_per_gpu_hour is None else gpu_hours * usd_per_gpu_hour
    return CostSensitivity(
        assumption=spread.assumption,
        basis=spread.basis,
        low_gpu_hours=gpu_hours * spread.low_ratio if spread.moves_hours else gpu_hours,
        high_gpu_hours=gpu_hours * spread.high_ratio if spread.moves_hours else gpu_hours,
        low_usd=None if usd is None else usd * spread.low_ratio,
        high_usd=None if usd is None else usd * spread.high_ratio,
        swing_ratio=spread.high_ratio / spread.low_ratio,
    )

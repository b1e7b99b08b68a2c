"""Where measured steps of runs that are never reported lie around the predicted ones, by what widens a band.

These residuals are where the figures of :mod:`shardwise.predict.time_band` come from.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from shardwise.predict.time_band import BandReason, band_reasons
from shardwise.validate.accuracy import percentile
from shardwise.validate.time_accuracy import TimedRowAccuracy

LOW_PERCENTILE, HIGH_PERCENTILE = 0.05, 0.95
"""Nine of ten runs lie inside."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BandResiduals:
    """Measured over predicted step time of the runs a band is made of."""

    reason: str
    num_runs: int
    low_ratio: float
    median_ratio: float
    high_ratio: float


def fitted_reason(row: TimedRowAccuracy) -> BandReason | None:
    """The reason whose band a run was used for; ``None`` for a run that fitted nothing."""
    if not row.is_fitted or not row.run.is_faithful:
        return None
    (*_, last) = band_reasons(row.run.plan)
    return last


def blind_families(rows: Sequence[TimedRowAccuracy]) -> tuple[str, ...]:
    """Families of which no run fitted anything, in the order of the rows."""
    fitting = {row.run.family for row in rows if fitted_reason(row) is not None}
    return tuple(dict.fromkeys(row.run.family for row in rows if row.run.family not in fitting))


def band_residuals(rows: Iterable[TimedRowAccuracy]) -> tuple[BandResiduals, ...]:
    """Residuals of fitted families without a gap, by the last reason that widens a run's band."""
    found: dict[str, list[float]] = {}
    for row in rows:
        reason = fitted_reason(row)
        if row.predicted_s and reason is not None:
            found.setdefault(reason.name, []).append(row.run.measured_s / row.predicted_s)
    return tuple(
        BandResiduals(
            reason=reason,
            num_runs=len(ratios),
            low_ratio=percentile(ratios, LOW_PERCENTILE),
            median_ratio=percentile(ratios, 0.5),
            high_ratio=percentile(ratios, HIGH_PERCENTILE),
        )
        for reason, ratios in sorted(found.items())
    )

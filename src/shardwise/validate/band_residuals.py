"""Where measured steps of runs that are never reported lie around the predicted ones, by what widens a band.

These residuals are where the figures of :mod:`shardwise.predict.time_band` come from.
"""

from collections.abc import Iterable
from dataclasses import dataclass

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


def band_residuals(rows: Iterable[TimedRowAccuracy]) -> tuple[BandResiduals, ...]:
    """Residuals of fitted families without a gap, by the last reason that widens a run's band."""
    found: dict[str, list[float]] = {}
    for row in rows:
        reason = row.fitted_reason
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

"""The step-time accuracy report as ``shardwise.time_validation/1``."""

from shardwise.validate.time_accuracy import TimeAccuracyReport, TimedRowAccuracy, TimeSummary

TIME_VALIDATION_SCHEMA = "shardwise.time_validation/1"


def time_validation_object(report: TimeAccuracyReport) -> dict[str, object]:
    """Summaries per family, the split of fitted and reported families, every row, and the rows that cannot be used."""
    return {
        "schema": TIME_VALIDATION_SCHEMA,
        "families": [summary_object(summary) for summary in report.families],
        "reported": _optional(report.reported),
        "fitted": _optional(report.fitted),
        "with_gaps": _optional(report.with_gaps),
        "family_median_fraction": report.family_median_fraction,
        "family_calibrated_fraction": report.family_calibrated_fraction,
        "fitted_families": list(report.fitted_families),
        "reported_families": list(report.reported_families),
        "rows": [timed_row_object(row) for row in report.rows],
        "unused": [{"id": row.id, "family": row.family, "reason": row.reason} for row in report.unused],
    }


def _optional(summary: TimeSummary | None) -> dict[str, object] | None:
    return None if summary is None else summary_object(summary)


def summary_object(summary: TimeSummary) -> dict[str, object]:
    """Errors of one group of runs."""
    return {
        "name": summary.name,
        "has_gaps": summary.has_gaps,
        "num_rows": summary.num_rows,
        "median_signed_fraction": summary.median_signed_fraction,
        "median_absolute_fraction": summary.median_absolute_fraction,
        "p90_absolute_fraction": summary.p90_absolute_fraction,
        "max_absolute_fraction": summary.max_absolute_fraction,
        "in_band_fraction": summary.in_band_fraction,
        "calibrated_median_fraction": summary.calibrated_median_fraction,
        "kendall_tau_ratio": summary.kendall_tau_ratio,
        "num_sweeps": summary.num_sweeps,
    }


def timed_row_object(row: TimedRowAccuracy) -> dict[str, object]:
    """One measured run beside its prediction."""
    run = row.run
    return {
        "id": run.id,
        "family": run.family,
        "sweep": run.sweep,
        "figure": run.figure,
        "measured_s": run.measured_s,
        "predicted_s": row.predicted_s,
        "low_s": row.low_s,
        "high_s": row.high_s,
        "is_in_band": row.is_in_band,
        "signed_error_fraction": row.signed_error_fraction,
        "components_s": {entry.component: entry.duration_s for entry in row.components},
        "refusal": row.refusal,
        "gaps": list(run.gaps),
        "assumptions": list(run.assumptions),
        "source": run.source,
        "date": run.date,
    }

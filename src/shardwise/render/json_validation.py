"""The accuracy report as ``shardwise.validation/1``."""

from collections.abc import Sequence

from shardwise.validate.accuracy import AccuracyReport, ErrorSummary, FitSummary, RowAccuracy

VALIDATION_SCHEMA = "shardwise.validation/1"


def validation_object(report: AccuracyReport) -> dict[str, object]:
    """Summaries per family and scope, the answers to "does it fit?", every row, and the rows that cannot be used."""
    return {
        "schema": VALIDATION_SCHEMA,
        "families": _summaries(report.families),
        "overall": _summaries(report.overall),
        "reported": _summaries(report.reported),
        "fitted": _summaries(report.fitted),
        "fits": fit_object(report.fits),
        "fits_by_family": [fit_object(summary) for summary in report.fits_by_family],
        "rows": [row_object(row) for row in report.rows],
        "unused": [{"id": row.id, "family": row.family, "reason": row.reason} for row in report.unused],
    }


def _summaries(summaries: Sequence[ErrorSummary]) -> list[dict[str, object]]:
    return [
        {
            "name": summary.name,
            "scope": summary.scope,
            "num_readings": summary.num_readings,
            "median_signed_fraction": summary.median_signed_fraction,
            "median_absolute_fraction": summary.median_absolute_fraction,
            "p90_absolute_fraction": summary.p90_absolute_fraction,
            "max_absolute_fraction": summary.max_absolute_fraction,
        }
        for summary in summaries
    ]


def fit_object(summary: FitSummary) -> dict[str, object]:
    """Right and wrong answers of one group."""
    return {
        "name": summary.name,
        "num_rows": summary.num_rows,
        "correct_fraction": summary.correct_fraction,
        "num_fits_right": summary.num_fits_right,
        "num_fits_wrong": summary.num_fits_wrong,
        "num_oom_wrong": summary.num_oom_wrong,
        "num_oom_right": summary.num_oom_right,
    }


def row_object(row: RowAccuracy) -> dict[str, object]:
    """One measured run beside its prediction."""
    run = row.run
    return {
        "id": run.id,
        "family": run.family,
        "scope": run.scope,
        "outcome": run.outcome,
        "measured_low_bytes": run.measured_low_bytes,
        "measured_high_bytes": run.measured_high_bytes,
        "predicted_bytes": row.predicted_bytes,
        "predicted_fits": row.predicted_fits,
        "signed_error_fraction": row.signed_error_fraction,
        "refusal": row.refusal,
        "assumptions": list(run.assumptions),
        "source": run.source,
        "date": run.date,
    }

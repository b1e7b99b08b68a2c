"""Published bills of whole runs beside their predictions, as ``shardwise.cost_validation/1``."""

from shardwise.validate.run_bills import BillComparison, BillReport

COST_VALIDATION_SCHEMA = "shardwise.cost_validation/1"


def bills_object(report: BillReport) -> dict[str, object]:
    """Every comparison, and the rows that state too little."""
    return {
        "schema": COST_VALIDATION_SCHEMA,
        "in_band_fraction": report.in_band_fraction,
        "rows": [_row_object(row) for row in report.rows],
        "unused": [{"id": row.id, "family": row.family, "reason": row.reason} for row in report.unused],
    }


def _row_object(row: BillComparison) -> dict[str, object]:
    return {
        "id": row.id,
        "model": row.model,
        "source": row.source,
        "quantity": row.quantity,
        "published": row.published_amount,
        "published_low": row.published_low_amount,
        "published_high": row.published_high_amount,
        "predicted": row.predicted_amount,
        "low": row.low_amount,
        "high": row.high_amount,
        "signed_error_fraction": row.signed_error_fraction,
        "is_in_band": row.is_in_band,
        "basis": row.basis,
        "implied_mfu_fraction": row.implied_mfu_fraction,
        "note": row.note,
    }

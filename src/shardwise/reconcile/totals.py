"""Prediction joined with measurement, quantity by quantity."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from shardwise.plan import Plan
from shardwise.prediction import Prediction
from shardwise.reconcile.measured import MeasuredTotals

Unit = Literal["s", "bytes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconciledRow:
    """One quantity on both sides, in the unit beside it."""

    quantity: str
    unit: Unit
    predicted_amount: float
    measured_amount: float
    low_amount: float | None
    high_amount: float | None
    """The prediction's band; ``None`` where it has none."""

    @property
    def signed_error_fraction(self) -> float:
        """Predicted over measured minus one: negative is too little."""
        return self.predicted_amount / self.measured_amount - 1

    @property
    def is_in_band(self) -> bool | None:
        """Whether the measured amount lies in the band; ``None`` without one."""
        if self.low_amount is None or self.high_amount is None:
            return None
        return self.low_amount <= self.measured_amount <= self.high_amount


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconciliation:
    """One run beside its prediction."""

    plan: Plan
    prediction: Prediction
    measured: MeasuredTotals
    rows: tuple[ReconciledRow, ...]

    @property
    def step_time_ratio(self) -> float | None:
        """Measured over predicted step time: what a calibration of this machine would multiply by."""
        row = next((row for row in self.rows if row.unit == "s"), None)
        return None if row is None else row.measured_amount / row.predicted_amount


def reconcile(plan: Plan, prediction: Prediction, measured: MeasuredTotals) -> Reconciliation:
    """Every quantity that both sides state."""
    rows = tuple(row for row in _rows(prediction, measured) if row.measured_amount > 0)
    return Reconciliation(plan=plan, prediction=prediction, measured=measured, rows=rows)


def _rows(prediction: Prediction, measured: MeasuredTotals) -> Iterator[ReconciledRow]:
    time, memory = prediction.time, prediction.memory
    if measured.step_s is not None:
        yield ReconciledRow(
            quantity="step time",
            unit="s",
            predicted_amount=time.step_s,
            measured_amount=measured.step_s,
            low_amount=time.step_low_s,
            high_amount=time.step_high_s,
        )
    worst = memory.worst
    readings = (
        ("peak allocated", worst.peak_allocated_bytes, measured.peak_allocated_bytes),
        ("peak reserved", worst.peak_reserved_bytes, measured.peak_reserved_bytes),
        ("device used", worst.device_used_bytes, measured.device_used_bytes),
    )
    for quantity, predicted, found in readings:
        if found is not None:
            yield ReconciledRow(
                quantity=quantity,
                unit="bytes",
                predicted_amount=predicted,
                measured_amount=found,
                low_amount=predicted * memory.low_fraction,
                high_amount=predicted * memory.high_fraction,
            )
    predicted_parts = {entry.component: entry.num_bytes for entry in worst.components}
    for name, found in measured.component_bytes:
        if name in predicted_parts:
            yield ReconciledRow(
                quantity=name,
                unit="bytes",
                predicted_amount=predicted_parts[name],
                measured_amount=found,
                low_amount=None,
                high_amount=None,
            )

"""Prediction joined with measurement, quantity by quantity."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from shardwise.plan import Plan
from shardwise.predict.memory_band import reading_band
from shardwise.prediction import Prediction
from shardwise.reconcile.measured import MeasuredTotals
from shardwise.reconcile.traced import traced_components
from shardwise.reconcile.utilisation import Utilisation, utilisations
from shardwise.units import Seconds

STEP_TIME = "step time"
DEVICE_USED = "device used"
MOST_FRACTION = 0.8
"""Share of the difference; causes are named until they explain as much."""
Unit = Literal["s", "bytes"]
Group = Literal["total", "memory", "time", "communication"]
"""Totals; parts of the memory of a rank; parts of a step; collectives, whose exposed time is one of these parts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconciledRow:
    """One quantity on both sides, in the unit beside it."""

    quantity: str
    unit: Unit
    group: Group = "total"
    predicted_amount: float
    measured_amount: float
    low_amount: float | None
    high_amount: float | None
    """The prediction's band; ``None`` where it has none."""

    @property
    def signed_error_fraction(self) -> float | None:
        """Predicted over measured minus one: negative is too little; ``None`` where nothing was measured."""
        return self.predicted_amount / self.measured_amount - 1 if self.measured_amount else None

    @property
    def gap_amount(self) -> float:
        """Measured minus predicted: what the prediction lacks."""
        return self.measured_amount - self.predicted_amount

    @property
    def is_in_band(self) -> bool | None:
        """Whether the measured amount lies in the band; ``None`` without one."""
        if self.low_amount is None or self.high_amount is None:
            return None
        return self.low_amount <= self.measured_amount <= self.high_amount


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """A part whose gap explains much of the whole's."""

    row: ReconciledRow
    share_fraction: float
    """Share of the absolute gaps of all parts together: too much in one part does not hide too little in another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconciliation:
    """One run beside its prediction."""

    plan: Plan
    prediction: Prediction
    measured: MeasuredTotals
    rows: tuple[ReconciledRow, ...]
    causes: tuple[Cause, ...]
    """The parts that explain most of the gaps, of time and then of memory."""
    utilisations: tuple[Utilisation, ...] = ()
    """The MFU by each convention that the plan's cluster allows."""

    def group(self, name: Group) -> tuple[ReconciledRow, ...]:
        """The rows of one group."""
        return tuple(row for row in self.rows if row.group == name)

    @property
    def step_time_ratio(self) -> float | None:
        """Measured over predicted step time: what a calibration of this machine would multiply by."""
        row = next((row for row in self.rows if row.quantity == STEP_TIME), None)
        return None if row is None else row.measured_amount / row.predicted_amount


def reconcile(plan: Plan, prediction: Prediction, measured: MeasuredTotals) -> Reconciliation:
    """Every quantity that both sides state."""
    rows = (
        *(row for row in _totals(prediction, measured) if row.measured_amount > 0),
        *memory_parts(prediction, measured),
        *_time_parts(plan, prediction, measured),
        *_collectives(prediction, measured),
    )
    causes = (*_causes(rows, "time"), *_causes(rows, "memory"))
    return Reconciliation(
        plan=plan,
        prediction=prediction,
        measured=measured,
        rows=rows,
        causes=causes,
        utilisations=utilisations(plan, prediction, step_s=measured.step_s, device=measured.device)
        if measured.step_s
        else (),
    )


def _totals(prediction: Prediction, measured: MeasuredTotals) -> Iterator[ReconciledRow]:
    time, memory = prediction.time, prediction.memory
    if measured.step_s is not None:
        yield ReconciledRow(
            quantity=STEP_TIME,
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
        (DEVICE_USED, worst.device_used_bytes, measured.device_used_bytes),
    )
    for quantity, predicted, found in readings:
        if found is not None:
            low, high = reading_band(memory, is_whole_device=quantity == DEVICE_USED)
            yield ReconciledRow(
                quantity=quantity,
                unit="bytes",
                predicted_amount=predicted,
                measured_amount=found,
                low_amount=predicted * low,
                high_amount=predicted * high,
            )


def memory_parts(prediction: Prediction, measured: MeasuredTotals) -> Iterator[ReconciledRow]:
    """The components of the ledger that the run states, predicted beside measured."""
    predicted = {entry.component: entry.num_bytes for entry in prediction.memory.worst.components}
    for name, found in measured.component_bytes:
        if name in predicted:
            yield _part(name, "bytes", "memory", predicted[name], found)


def _time_parts(plan: Plan, prediction: Prediction, measured: MeasuredTotals) -> Iterator[ReconciledRow]:
    """Components of the ledger in a profiled step, exposed communication on both sides as a trace shows it."""
    if measured.sampled is None:
        return
    predicted = traced_components(plan, prediction)
    for name, found_s in measured.sampled.components_s:
        said_s = predicted.get(name, 0.0)
        if said_s or found_s:
            yield _part(name, "s", "time", said_s, found_s)


def _collectives(prediction: Prediction, measured: MeasuredTotals) -> Iterator[ReconciledRow]:
    """Work and exposure of each kind of collective; a measured kind has no axis, so the predicted axes are added."""
    if measured.sampled is None:
        return
    work_s: dict[str, Seconds] = defaultdict(float)
    exposed_s: dict[str, Seconds] = defaultdict(float)
    for entry in prediction.time.communication:
        work_s[entry.kind] += entry.total_s
        exposed_s[entry.kind] += entry.exposed_s
    found = {family.kind: family for family in measured.sampled.families}
    for kind in dict.fromkeys((*work_s, *found)):
        family = found.get(kind)
        yield _part(f"{kind} work", "s", "communication", work_s[kind], family.work_s if family else 0.0)
        yield _part(f"{kind} exposed", "s", "communication", exposed_s[kind], family.exposed_s if family else 0.0)


def _part(quantity: str, unit: Unit, group: Group, predicted: float, measured: float) -> ReconciledRow:
    return ReconciledRow(
        quantity=quantity,
        unit=unit,
        group=group,
        predicted_amount=predicted,
        measured_amount=measured,
        low_amount=None,
        high_amount=None,
    )


def _causes(rows: Sequence[ReconciledRow], group: Group) -> Iterator[Cause]:
    """The largest gaps of a group, until they explain most of what differs."""
    parts = sorted((row for row in rows if row.group == group), key=lambda row: -abs(row.gap_amount))
    differs = sum(abs(row.gap_amount) for row in parts)
    explained = 0.0
    for row in parts:
        if not differs or explained >= MOST_FRACTION * differs:
            return
        explained += abs(row.gap_amount)
        yield Cause(row=row, share_fraction=abs(row.gap_amount) / differs)

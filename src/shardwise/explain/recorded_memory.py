"""Explains memory that was recorded: a run's or a trace's measurement, or a snapshot of CUDA's allocator.

Beside a plan every component is set against its prediction, and where the device is too small the changes that are
predicted to be enough follow. Requests that the device refused are matched with the plan's tensors.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from shardwise.errors import TraceError
from shardwise.explain.changes import NOTHING_FITS, remedies
from shardwise.explain.out_of_memory import explain_allocation
from shardwise.explain.records import Finding, Quantity
from shardwise.measure.memory_profile import profile_memory
from shardwise.measure.memory_snapshot import RefusedRequest, is_memory_snapshot
from shardwise.plan import Plan
from shardwise.predict import predict
from shardwise.prediction import Prediction
from shardwise.reconcile.measured import read_measurement
from shardwise.units import Bytes, format_gib, format_percent

__all__ = ["RecordedMemory", "explain_recorded_memory", "recorded_memory"]

SHOWN_REFUSALS = 2
TELLING_FRACTION = 0.02
"""Share of the peak; a component that differs by less is not named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedMemory:
    """The bytes that the fullest rank of a record held at its peak."""

    source: str
    """The record that was read, in words."""
    peak_bytes: Bytes
    phase: str
    """The phase of the step in which the peak lies; empty where the record does not say."""
    components: tuple[tuple[str, Bytes], ...]
    """Bytes at the peak by the ledger's components, largest first."""
    refused: tuple[RefusedRequest, ...] = ()


def recorded_memory(path: Path) -> RecordedMemory:
    """The memory of the fullest rank in a record.

    Args:
        path: a snapshot of the allocator, the ``measurement.json`` of a run or of ``shardwise trace``, or a run folder.

    Raises:
        TraceError: it is none of them, or states no memory.
    """
    if path.is_file() and is_memory_snapshot(path):
        fullest = max(profile_memory(path), key=lambda device: device.peak.num_bytes)
        return RecordedMemory(
            source=f"the snapshot {path.name}",
            peak_bytes=fullest.peak.num_bytes,
            phase=fullest.peak.phase,
            components=fullest.peak.components,
            refused=fullest.refused,
        )
    totals = read_measurement(path)
    held = tuple(sorted(totals.component_bytes, key=lambda entry: -entry[1]))
    peak_bytes = totals.peak_allocated_bytes or sum(num_bytes for _, num_bytes in held)
    if not peak_bytes:
        raise TraceError(
            f"'{path}' states no peak of memory",
            code="reconcile-no-measurement",
            fix="give the record that `shardwise trace PLAN --out FILE` writes, a run folder, or a memory snapshot",
        )
    return RecordedMemory(source=f"the record {path.name}", peak_bytes=peak_bytes, phase="", components=held)


def explain_recorded_memory(record: RecordedMemory, *, plan: Plan | None = None) -> tuple[Finding, ...]:
    """Findings that name what a rank held at its peak and, beside a plan, what was not predicted and what would fit."""
    return (_peak(record), *_refusals(record, plan), *(_beside(record, plan) if plan is not None else ()))


def _peak(record: RecordedMemory) -> Finding:
    at = f" in {record.phase}" if record.phase else ""
    first = record.components[0] if record.components else None
    most = f", {format_percent(first[1] / record.peak_bytes)} of it {_words(first[0])}" if first else ""
    return Finding(
        topic="memory",
        claim=f"By {record.source} the fullest rank held {format_gib(record.peak_bytes)} at its peak{at}{most}.",
        numbers=tuple(Quantity(name=name, value=size, unit="bytes") for name, size in record.components),
    )


def _refusals(record: RecordedMemory, plan: Plan | None) -> Iterator[Finding]:
    """The requests that the device had no room for, and which tensors they were."""
    for request in record.refused[:SHOWN_REFUSALS]:
        free = "" if request.free_bytes is None else f" with {format_gib(request.free_bytes)} free"
        yield Finding(
            topic="out-of-memory",
            claim=f"A request of {format_gib(request.num_bytes)} was refused{free}.",
            numbers=(Quantity(name="requested", value=request.num_bytes, unit="bytes"),),
        )
        yield from explain_allocation(str(request.num_bytes), plan=plan)


def _beside(record: RecordedMemory, plan: Plan) -> Iterator[Finding]:
    prediction = predict(plan)
    worst = prediction.memory.worst
    yield Finding(
        topic="memory",
        claim=f"{format_gib(worst.peak_allocated_bytes)} were predicted to be allocated, "
        f"{format_percent(abs(worst.peak_allocated_bytes / record.peak_bytes - 1))} "
        f"{'more' if worst.peak_allocated_bytes > record.peak_bytes else 'less'} than was recorded.",
        numbers=tuple(_gaps(record, prediction)),
        because="recorded minus predicted, component by component",
    )
    outside = worst.device_used_bytes - worst.peak_allocated_bytes
    needed, capacity = record.peak_bytes + outside, prediction.memory.capacity_bytes
    if record.refused or needed > capacity or not prediction.fits:
        yield from _relief(plan, prediction, needed_bytes=needed)
    else:
        yield Finding(
            topic="headroom",
            claim=f"With {format_gib(outside)} that lie outside of tensors by the prediction, the record leaves "
            f"{format_gib(capacity - needed)} of the {format_gib(capacity)} of the device.",
        )


def _gaps(record: RecordedMemory, prediction: Prediction) -> Iterator[Quantity]:
    predicted = {entry.component: entry.num_bytes for entry in prediction.memory.worst.components}
    gaps = [(name, size - predicted.get(name, 0)) for name, size in record.components]  # type: ignore[call-overload]
    for name, gap in sorted(gaps, key=lambda entry: -abs(entry[1])):
        if abs(gap) >= TELLING_FRACTION * record.peak_bytes:
            yield Quantity(name=f"{name}, beyond the prediction", value=gap, unit="bytes")


def _relief(plan: Plan, prediction: Prediction, *, needed_bytes: Bytes) -> Iterator[Finding]:
    """Changes that fit also when the plan needs what was recorded and not what was predicted."""
    ratio = max(1.0, needed_bytes / prediction.memory.needed_bytes)
    enough = [change for change in remedies(plan, prediction, needed_bytes=needed_bytes) if change.fits]
    if not enough:
        yield Finding(topic="change", claim=NOTHING_FITS)
    for change in enough[:SHOWN_REFUSALS]:
        yield Finding(
            topic="change",
            claim=f"{change.edit} needs {format_gib(round(change.needed_bytes * ratio))}, scaled by what was recorded.",
            because=change.cost,
            suggestion=f"set {change.edit}",
        )


def _words(name: str) -> str:
    return name.replace("_", " ")

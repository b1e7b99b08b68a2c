"""The totals of a measured run, from a run folder of ours or from the log of another trainer."""

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from shardwise.errors import TraceError
from shardwise.ledger import TIME_COMPONENTS, TimeComponent
from shardwise.measure.trainer_logs import LoggedStep, TrainerLog, read_trainer_log
from shardwise.plan import Plan
from shardwise.units import MIB, Bytes, Seconds

MEASUREMENT_FILE = "measurement.json"
MOST_FILE_BYTES = 256 * MIB
MOST = 1e18
"""A limit above every number of a measurement: seconds, bytes, tokens."""
WARM_UP_STEPS = 3
"""The first steps compile, allocate and connect; medians leave them out when as many remain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredFamily:
    """All collectives of one kind in a mean step of a mean rank."""

    kind: str
    num_calls: float
    work_s: Seconds
    exposed_s: Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledTimes:
    """Where a profiled step went; profiling slows a step, so its parts sum to more than the median step."""

    components_s: tuple[tuple[TimeComponent, Seconds], ...]
    families: tuple[MeasuredFamily, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredTotals:
    """What was measured; ``None`` where nothing says it."""

    trainer: str
    num_steps: int
    """Steps behind the median."""
    step_s: Seconds | None
    peak_allocated_bytes: Bytes | None
    peak_reserved_bytes: Bytes | None
    device_used_bytes: Bytes | None
    component_bytes: tuple[tuple[str, Bytes], ...] = ()
    """Bytes by the ledger's components, where the run states them."""
    sampled: SampledTimes | None = None
    """Times of the steps that a profiler recorded; ``None`` without such steps."""
    device: str = ""
    """Name of the device as the run states it; empty for logs."""
    notes: tuple[str, ...] = ()


def measured_totals(path: Path, plan: Plan) -> MeasuredTotals:
    """The totals of a run folder, a measurement file or a log.

    Args:
        plan: what was run; it turns rates into seconds a step.

    Raises:
        TraceError: nothing there is a measurement or a log that is known.
    """
    require_run(path)
    file = path / MEASUREMENT_FILE if path.is_dir() else path
    return read_measurement(file) if file.name == MEASUREMENT_FILE else totals_of_log(read_trainer_log(file), plan)


def require_run(path: Path) -> None:
    """Return when something that could be a measurement lies there.

    Raises:
        TraceError: nothing does, it must not be read, or it is a folder without a measurement.
    """
    if not path.exists():
        raise TraceError(
            f"there is no file or folder '{path}'",
            code="trace-unreadable",
            fix="name a run folder, its measurement.json, or a trainer's log",
        )
    if not os.access(path, os.R_OK | (os.X_OK if path.is_dir() else 0)):
        raise TraceError(
            f"'{path}' must not be read by this user",
            code="trace-unreadable",
            fix=f"chmod u+rX '{path}', or name a copy of it",
        )
    if path.is_dir() and not (path / MEASUREMENT_FILE).exists():
        what = "is empty" if not any(path.iterdir()) else f"holds no {MEASUREMENT_FILE}"
        raise TraceError(
            f"the folder '{path}' {what}: the run did not end, or is no run of ours",
            code="reconcile-no-measurement",
            fix="name its metrics.jsonl, or the log of the trainer that ran it",
        )


def totals_of_log(log: TrainerLog, plan: Plan) -> MeasuredTotals:
    """The medians of a log; a batch or size that is not the plan's is noted."""
    times = [seconds for step in log.steps if (seconds := _step_s(step, log, plan)) is not None]
    steady = times[WARM_UP_STEPS:] if len(times) >= 2 * WARM_UP_STEPS else times
    return MeasuredTotals(
        trainer=log.trainer,
        num_steps=len(steady),
        step_s=median(steady) if steady else None,
        peak_allocated_bytes=_largest(step.max_allocated_bytes for step in log.steps),
        peak_reserved_bytes=_largest(step.max_reserved_bytes for step in log.steps),
        device_used_bytes=_largest(step.device_used_bytes for step in log.steps),
        notes=tuple(_contradictions(log, plan)),
    )


def _step_s(step: LoggedStep, log: TrainerLog, plan: Plan) -> Seconds | None:
    if step.step_s is not None:
        return step.step_s
    if step.tokens_per_s_per_gpu:
        return plan.tokens_per_step / (step.tokens_per_s_per_gpu * plan.layout.world_size)
    if step.samples_per_s:
        return (log.global_batch_size or plan.global_batch_size) / step.samples_per_s
    return None


def _contradictions(log: TrainerLog, plan: Plan) -> list[str]:
    """Sentences on where the log says that something else was run."""
    said = {
        "global_batch_size": (log.global_batch_size, plan.global_batch_size),
        "micro_batch_size": (log.micro_batch_size, plan.recipe.micro_batch_size),
        "seq_len": (log.seq_len, plan.recipe.seq_len),
        "GPUs": (log.num_gpus, plan.layout.world_size),
    }
    return [
        f"the log says {name}={logged}, the plan {planned}: errors below compare different runs"
        for name, (logged, planned) in said.items()
        if logged is not None and logged != planned
    ]


def read_measurement(path: Path) -> MeasuredTotals:
    """The totals in a measurement of ours, or in the one of a run folder.

    Raises:
        TraceError: it is none.
    """
    require_run(path)
    return totals_of_measurement(measurement_in(path / MEASUREMENT_FILE if path.is_dir() else path))


def measurement_in(file: Path) -> Mapping[str, object]:
    """The document in a measurement file of ours.

    Raises:
        TraceError: it is none.
    """
    try:
        if file.stat().st_size > MOST_FILE_BYTES:
            raise _no_measurement(f"'{file}' has more than {MOST_FILE_BYTES // MIB} MiB")
        found = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError) as error:  # ValueError: no JSON, or no text
        raise _no_measurement(f"'{file}' cannot be read: {error!s:.200}") from None
    if not isinstance(found, dict) or not ({"memory", "time"} & found.keys()):
        raise _no_measurement(f"'{file}' is JSON, but no measurement: it has neither 'memory' nor 'time'")
    return found


def totals_of_measurement(found: Mapping[str, object]) -> MeasuredTotals:
    """The totals of a parsed measurement of ours."""
    memory, time = _part(found, "memory"), _part(found, "time")
    components = _part(memory, "components_bytes")
    return MeasuredTotals(
        trainer="shardwise",
        num_steps=int(_number(time, "num_steps_measured") or 0),
        step_s=_number(time, "step_s"),
        peak_allocated_bytes=_whole(memory, "peak_allocated_bytes"),
        peak_reserved_bytes=_whole(memory, "peak_reserved_bytes"),
        device_used_bytes=_whole(memory, "device_used_bytes"),
        component_bytes=tuple((name, round(value)) for name in components if (value := _number(components, name))),
        sampled=_sampled(time),
        device=str(_part(found, "environment").get("device") or ""),
    )


def _no_measurement(message: str) -> TraceError:
    return TraceError(message, code="reconcile-no-measurement", fix="give the run folder of a run that ended")


def _sampled(time: Mapping[str, object]) -> SampledTimes | None:
    """The times that a measurement holds of profiled steps."""
    parts, families = _part(time, "components_s"), time.get("communication")
    if not parts:
        return None
    return SampledTimes(
        components_s=tuple((name, _difference(parts, name) or 0.0) for name in TIME_COMPONENTS),
        families=tuple(
            MeasuredFamily(
                kind=str(family.get("kind", "")),
                num_calls=_number(family, "num_calls") or 0.0,
                work_s=_number(family, "work_s") or 0.0,
                exposed_s=_number(family, "exposed_s") or 0.0,
            )
            for family in (families if isinstance(families, list) else [])
            if isinstance(family, dict)
        ),
    )


def _part(mapping: object, name: str) -> Mapping[str, object]:
    part = mapping.get(name) if isinstance(mapping, dict) else None
    if part is not None and not isinstance(part, dict):
        raise _no_measurement(f"the measurement's {name} is {str(part)[:40]!r}, not an object")
    return part or {}


def _number(mapping: Mapping[str, object], name: str) -> float | None:
    """A number that can be measured; ``None`` where nothing was."""
    value = _difference(mapping, name)
    if value is not None and value < 0:
        raise _no_measurement(f"the measurement's {name[:60]} is {value:g}, and cannot be below 0")
    return value


def _difference(mapping: Mapping[str, object], name: str) -> float | None:
    """A number that is what is left of a measured one, and may be a little below 0; ``None`` where nothing was."""
    value = mapping.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < MOST:
        raise _no_measurement(
            f"the measurement's {name[:60]} is {str(value)[:40]!r}, not a number that can be measured"
        )
    return float(value)


def _whole(mapping: Mapping[str, object], name: str) -> int | None:
    value = _number(mapping, name)
    return None if value is None else round(value)


def _largest(values: Iterable[Bytes | None]) -> Bytes | None:
    return max((value for value in values if value), default=None)

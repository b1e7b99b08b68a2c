"""Runs of one machine as a calibration learns from them: what was predicted, what was measured, and what decides it."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import get_args

from shardwise.calibration import Calibration, MachineFacts, Residual, ResidualName
from shardwise.catalog.hardware.names import driver_gpu_id
from shardwise.plan import Plan
from shardwise.predict import predict
from shardwise.predict.calibrated_cluster import calibrated_cluster
from shardwise.prediction import Prediction
from shardwise.reconcile.measured import MeasuredTotals
from shardwise.units import Bytes, Seconds

TIME_FACTORS: tuple[ResidualName, ...] = tuple(
    name for name in get_args(ResidualName) if not str(name).startswith("memory")
)
MEMORY_FACTORS: tuple[ResidualName, ...] = ("memory allocated", "memory reserved", "memory outside")
NUDGE_RATIO = 1.05
"""A factor is multiplied by this to see what the step makes of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTotals:
    """The totals of one side; ``None`` where it says nothing."""

    step_s: Seconds | None
    allocated_bytes: Bytes | None
    reserved_bytes: Bytes | None
    used_bytes: Bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """One run beside its prediction by the calibration that is about to learn."""

    name: str
    plan: Plan
    predicted: RunTotals
    measured: RunTotals
    shares: tuple[tuple[ResidualName, float], ...]
    """Relative change of the step per relative change of a factor; what overlaps counts only where it shows."""


def run_record(name: str, plan: Plan, measured: MeasuredTotals, calibration: Calibration) -> RunRecord:
    """The record of a run, predicted by a calibration."""
    totals = RunTotals(
        step_s=measured.step_s,
        allocated_bytes=measured.peak_allocated_bytes,
        reserved_bytes=measured.peak_reserved_bytes,
        used_bytes=measured.device_used_bytes,
    )
    unpredicted = RunTotals(step_s=None, allocated_bytes=None, reserved_bytes=None, used_bytes=None)
    return predicted_again(
        RunRecord(name=name, plan=plan, predicted=unpredicted, measured=totals, shares=()), calibration
    )


def predicted_again(run: RunRecord, calibration: Calibration) -> RunRecord:
    """The run beside its prediction by another calibration."""
    base = predicted_by(run.plan, calibration)
    shares = [(factor, _share(run.plan, calibration, factor, base.time.step_s)) for factor in TIME_FACTORS]
    return replace(
        run, predicted=totals_of(base), shares=tuple((factor, share) for factor, share in shares if share > 0)
    )


def predicted_by(plan: Plan, calibration: Calibration) -> Prediction:
    """The prediction of a plan on its cluster as a calibration describes it."""
    cluster = replace(plan.cluster, calibration=None)
    return predict(replace(plan, cluster=calibrated_cluster(cluster, calibration)))


def totals_of(prediction: Prediction) -> RunTotals:
    """Totals of a prediction that a run can be compared with."""
    worst = prediction.memory.worst
    return RunTotals(
        step_s=prediction.time.step_s,
        allocated_bytes=worst.peak_allocated_bytes,
        reserved_bytes=worst.peak_reserved_bytes,
        used_bytes=worst.device_used_bytes,
    )


def with_factors(calibration: Calibration, factors: Mapping[ResidualName, Residual]) -> Calibration:
    """The calibration with other factors, as another calibration."""
    kept = {residual.name: residual for residual in calibration.residuals} | dict(factors)
    residuals = tuple(kept[name] for name in get_args(ResidualName) if name in kept)
    marks = ",".join(f"{residual.name}={residual.ratio:.9g}/{residual.num_runs}" for residual in residuals)
    return replace(calibration, residuals=residuals, digest=f"{calibration.digest}+{marks}")


def machine_of(environment: Mapping[str, object], *, num_processes: int) -> MachineFacts:
    """The machine that a measurement was made on."""
    device = str(environment.get("device") or "an unnamed device")
    is_cuda = environment.get("cuda") is not None
    names = ("python", "torch", "cuda", "nccl")
    return MachineFacts(
        device_kind="cuda" if is_cuda else "cpu",
        device=device,
        gpu_id=driver_gpu_id(device),
        num_processes=num_processes,
        host="",
        processor="" if is_cuda else device,
        versions=tuple((name, str(environment[name])) for name in names if environment.get(name)),
    )


def _share(plan: Plan, calibration: Calibration, factor: ResidualName, step_s: Seconds) -> float:
    ratio = NUDGE_RATIO * calibration.ratio_of(factor)
    nudged = with_factors(calibration, {factor: Residual(name=factor, ratio=ratio, num_runs=0)})
    return (predicted_by(plan, nudged).time.step_s / step_s - 1) / (NUDGE_RATIO - 1)

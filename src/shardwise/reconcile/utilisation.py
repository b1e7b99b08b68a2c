"""Model FLOP utilisation of a measured step: which peak it is a share of, or why there is none to be a share of.

The first figure divides by the dense peak that the cluster's part is sold with. Where a calibration timed matrix
products on the machine, a second one divides by the best of them: how much of what this machine can do was used.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from shardwise.calibration import Calibration
from shardwise.catalog.hardware.names import driver_gpu_id
from shardwise.cluster import Dtype
from shardwise.plan import Plan
from shardwise.prediction import Prediction, Throughput
from shardwise.step.operation_context import MATMUL_DTYPES, usable_dtype
from shardwise.units import FlopPerSecond, Seconds, format_flop_per_s, format_percent


@dataclass(frozen=True, slots=True, kw_only=True)
class Utilisation:
    """One MFU by one convention, predicted and measured."""

    convention: str
    """What is counted, and what it is divided by."""
    peak_flop_per_s: FlopPerSecond | None
    """Peak of one GPU; ``None`` where nobody knows it."""
    predicted_fraction: float | None
    measured_fraction: float | None
    refusal: str | None = None
    """Why no measured MFU is stated, and what to do about it; ``None`` where one is stated."""


def utilisations(
    plan: Plan, prediction: Prediction, *, step_s: Seconds | None, device: str = ""
) -> tuple[Utilisation, ...]:
    """The MFU of a step against the dense peak and, with a calibration, against the best measured product.

    Args:
        plan: what was run.
        prediction: of the plan; it counts the FLOP.
        step_s: measured; ``None`` where nothing says it.
        device: as the run names it; empty where it says nothing, and the plan is believed.
    """
    return tuple(_both(plan, prediction.throughput, predicted_s=prediction.time.step_s, step_s=step_s, device=device))


def _both(
    plan: Plan, throughput: Throughput, *, predicted_s: Seconds, step_s: Seconds | None, device: str
) -> Iterator[Utilisation]:
    counted = throughput.mfu_convention.partition(";")[0]
    dtype = _divisor_dtype(plan)
    per_gpu_flop = throughput.model_flop_per_step / plan.layout.world_size
    gpu, peak = plan.cluster.gpu, throughput.peak_flop_per_s
    stated = f"{counted}; dense {dtype} peak of {gpu.name}"
    if peak:
        yield _utilisation(
            f"{stated}, {format_flop_per_s(peak)}",
            peak=peak,
            seconds=(predicted_s, step_s),
            flop=per_gpu_flop,
            refusal=_other_device(plan, device),
        )
    else:
        yield _refused(stated, f"no source states that peak: calibrate, and add --calibration for {gpu.name}")
    calibration = plan.cluster.calibration
    if calibration is not None and calibration.is_measured:
        yield _by_products(
            calibration,
            counted,
            dtype,
            seconds=(predicted_s, step_s),
            flop=per_gpu_flop,
            refusal=_other_machine(calibration, plan, device),
        )


def _divisor_dtype(plan: Plan) -> Dtype:
    """The dtype of the peak: that of the products, bf16 for 8-bit products, so that recipes can be compared."""
    dtype = usable_dtype(MATMUL_DTYPES[plan.recipe.precision], plan.cluster.gpu)
    return "bf16" if dtype == "fp8" else dtype


def _by_products(
    calibration: Calibration,
    counted: str,
    dtype: Dtype,
    *,
    seconds: tuple[Seconds, Seconds | None],
    flop: float,
    refusal: str,
) -> Utilisation:
    """MFU against the best product that was timed in the dtype of the training."""
    best = max((point.rate_flop_per_s for point in calibration.products if point.dtype == dtype), default=0.0)
    convention = f"{counted}; best measured {dtype} product of {calibration.date}"
    if not best:
        return _refused(convention, f"the calibration timed no {dtype} products: calibrate where the plan trains")
    named = f"{convention}, {format_flop_per_s(best)}"
    return _utilisation(named, peak=best, seconds=seconds, flop=flop, refusal=refusal)


def _utilisation(
    convention: str, *, peak: FlopPerSecond, seconds: tuple[Seconds, Seconds | None], flop: float, refusal: str
) -> Utilisation:
    predicted_s, step_s = seconds
    measured = None if step_s is None or refusal else flop / (step_s * peak)
    if measured is not None and measured > 1:
        share = format_percent(measured)
        refusal = (
            f"{share} cannot be: the step was faster than {format_flop_per_s(peak)} allow; correct the cluster's peak"
        )
        measured = None
    return Utilisation(
        convention=convention,
        peak_flop_per_s=peak,
        predicted_fraction=flop / (predicted_s * peak),
        measured_fraction=measured,
        refusal=refusal or None,
    )


def _refused(convention: str, refusal: str) -> Utilisation:
    return Utilisation(
        convention=convention, peak_flop_per_s=None, predicted_fraction=None, measured_fraction=None, refusal=refusal
    )


def _other_device(plan: Plan, device: str) -> str:
    """Why the plan's peak says nothing about the device that ran; empty where it does."""
    gpu = plan.cluster.gpu
    if not device or gpu.confidence == "user":
        return ""
    found = driver_gpu_id(device)
    if found == gpu.id:
        return ""
    what = found or f"'{device}', which is no part of the catalogue"
    return f"it ran on {what}, and the plan's peak is that of {gpu.id}: plan for what ran, or give a calibration of it"


def _other_machine(calibration: Calibration, plan: Plan, device: str) -> str:
    """Why products timed there say nothing about the device that ran; empty where they do."""
    machine = calibration.machine
    ran = driver_gpu_id(device) if device else "" if plan.cluster.gpu.confidence == "user" else plan.cluster.gpu.id
    if ran == machine.gpu_id:
        return ""
    what = device or plan.cluster.gpu.name
    return f"it ran on {what}, and the products were timed on {machine.device}: calibrate where it runs"

"""Time of operations on one device: a roofline with the share of the peak each kind and size of kernel reaches."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil
from typing import get_args

from shardwise.cluster import Gpu
from shardwise.formulas.kernel_time import saturation, wave_efficiency
from shardwise.predict.kernel_rates import (
    ELEMENTWISE_FRACTION,
    GEMM_K_HALF,
    GEMM_K_HALF_FP8,
    GEMM_K_REFERENCE,
    OPTIMIZER_FRACTION,
    KernelRates,
)
from shardwise.step.inventory import Operation, OperationPhase
from shardwise.units import Seconds

OPERATION_PHASES: tuple[OperationPhase, ...] = get_args(OperationPhase)

TILES = ((128, 256, 1.0), (256, 128, 1.0), (128, 128, 0.9))
"""Tile rows, columns and the share of the rate that the tile itself allows: a smaller tile reads more per FLOP
(NVIDIA, Matrix Multiplication Background User's Guide). The library picks the best."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseTimes:
    """Seconds of compute by phase."""

    forward_s: Seconds = 0.0
    backward_s: Seconds = 0.0
    """Input and weight gradients together."""
    weight_backward_s: Seconds = 0.0
    """The part of ``backward_s`` that zero-bubble schedules can delay."""
    recompute_s: Seconds = 0.0
    optimizer_s: Seconds = 0.0
    attention_forward_s: Seconds = 0.0
    """The part of ``forward_s`` that ring attention hides its messages under."""
    attention_backward_s: Seconds = 0.0

    def plus(self, other: "PhaseTimes", *, times: int) -> "PhaseTimes":
        """Sum with another, taken ``times`` times."""
        return PhaseTimes(
            forward_s=self.forward_s + times * other.forward_s,
            backward_s=self.backward_s + times * other.backward_s,
            weight_backward_s=self.weight_backward_s + times * other.weight_backward_s,
            recompute_s=self.recompute_s + times * other.recompute_s,
            optimizer_s=self.optimizer_s + times * other.optimizer_s,
            attention_forward_s=self.attention_forward_s + times * other.attention_forward_s,
            attention_backward_s=self.attention_backward_s + times * other.attention_backward_s,
        )


def operation_time_s(operation: Operation, *, gpu: Gpu, rates: KernelRates) -> Seconds:
    """Time of one execution of an operation."""
    fraction = ELEMENTWISE_FRACTION
    if operation.kind == "optimizer":
        fraction = OPTIMIZER_FRACTION / rates.optimizer_ratio
    moving_s = operation.num_bytes / (fraction * gpu.memory_bandwidth_bytes_per_s)
    if not operation.flop or operation.kind in ("memory", "optimizer"):
        return max(moving_s, rates.floor_s)
    peak = gpu.peak_flop_per_s(operation.dtype)
    computing_s = operation.flop / (peak * compute_fraction(operation, rates)) if peak else 0.0
    return max(computing_s, moving_s, rates.floor_s)


def compute_fraction(operation: Operation, rates: KernelRates) -> float:
    """Share of the dense peak an operation reaches when memory does not bound it."""
    if operation.kind == "attention":
        return _attention_fraction(operation, rates)
    is_fp8 = operation.dtype == "fp8"
    ceiling = rates.fp8_gemm_fraction if is_fp8 else rates.gemm_fraction
    half = GEMM_K_HALF_FP8 if is_fp8 else GEMM_K_HALF
    depth = saturation(x=max(1, operation.k), half=half) / saturation(x=GEMM_K_REFERENCE, half=half)
    return ceiling * min(1.0, depth) * _wave_fraction(operation, rates)


def _wave_fraction(operation: Operation, rates: KernelRates) -> float:
    """Best tile's useful share; experts' products share the waves of one grouped kernel."""
    if rates.num_sms <= 1:
        return 1.0
    groups = max(1, round(operation.flop / (2 * operation.m * operation.n * operation.k)))
    best = 0.0
    for tile_m, tile_n, share in TILES:
        rows = ceil(operation.m / tile_m) * tile_m * groups
        padded = operation.m * groups / rows
        waves = wave_efficiency(m=rows, n=operation.n, tile_m=tile_m, tile_n=tile_n, num_sms=rates.num_sms)
        best = max(best, share * padded * waves)
    return best


def _attention_fraction(operation: Operation, rates: KernelRates) -> float:
    length = max(1, min(operation.m, operation.n))
    attention = rates.attention
    if operation.phase == "backward":
        return attention.backward_fraction * saturation(x=length, half=attention.backward_half)
    return attention.forward_fraction * saturation(x=length, half=attention.forward_half)


def phase_times(operations: Iterable[Operation], *, gpu: Gpu, rates: KernelRates) -> PhaseTimes:
    """Seconds of a list of operations by phase, each executed ``count`` times."""
    totals: dict[OperationPhase, Seconds] = dict.fromkeys(OPERATION_PHASES, 0.0)
    attention: dict[OperationPhase, Seconds] = dict.fromkeys(OPERATION_PHASES, 0.0)
    weight_backward = 0.0
    for operation in operations:
        duration = operation.count * operation_time_s(operation, gpu=gpu, rates=rates)
        totals[operation.phase] += duration
        if operation.kind == "attention":
            attention[operation.phase] += duration
        elif operation.name.endswith(".wgrad"):
            weight_backward += duration
    return PhaseTimes(
        forward_s=totals["forward"],
        backward_s=totals["backward"],
        weight_backward_s=weight_backward,
        recompute_s=totals["recompute"],
        optimizer_s=totals["optimizer"],
        attention_forward_s=attention["forward"],
        attention_backward_s=attention["backward"] + attention["recompute"],
    )

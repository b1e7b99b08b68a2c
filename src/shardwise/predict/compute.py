"""Time of operations on one device: a roofline with the share of the peak each kind and size of kernel reaches."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import get_args

from shardwise.cluster import Gpu
from shardwise.formulas.kernel_time import saturation
from shardwise.predict.calibrated_kernels import attention_position
from shardwise.predict.kernel_rates import (
    ATTENTION_REFERENCE_ROUNDS,
    ATTENTION_TAILS,
    ATTENTION_TILE_ROWS,
    DELTA_RULE_BACKWARD,
    DELTA_RULE_FORWARD,
    HOST_PACES,
    OPTIMIZER_FRACTION,
    KernelRates,
)
from shardwise.predict.product_alignment import unaligned_batched_flop_per_s
from shardwise.predict.product_rates import Product
from shardwise.step.inventory import Operation, OperationPhase
from shardwise.step.operation_context import ATTENTION_BACKWARD_RATIO
from shardwise.units import Seconds

OPERATION_PHASES: tuple[OperationPhase, ...] = get_args(OperationPhase)


@dataclass(frozen=True, slots=True)
class DeviceAndHost:
    """Seconds that the device takes for a list of kernels, and that the host takes to issue them."""

    device_s: Seconds = 0.0
    host_s: Seconds = 0.0

    def plus(self, other: "DeviceAndHost", *, times: float) -> "DeviceAndHost":
        """Sum with another, taken ``times`` times."""
        return DeviceAndHost(self.device_s + times * other.device_s, self.host_s + times * other.host_s)

    @property
    def longest_s(self) -> Seconds:
        """Seconds when neither side runs ahead of the other."""
        return max(self.device_s, self.host_s)

    def at_pace(self, ratio: float) -> "DeviceAndHost":
        """These kernels, issued by a host that takes ``ratio`` times as long."""
        return DeviceAndHost(self.device_s, ratio * self.host_s)


NO_WORK = DeviceAndHost()


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseTimes:
    """Seconds of compute by phase."""

    forward_s: Seconds = 0.0
    backward_s: Seconds = 0.0
    """Seconds of input and weight gradients together."""
    weight_backward_s: Seconds = 0.0
    """The part of ``backward_s`` that zero-bubble schedules can delay."""
    recompute_s: Seconds = 0.0
    optimizer_s: Seconds = 0.0
    attention_forward_s: Seconds = 0.0
    """The part of ``forward_s`` that ring attention hides its messages under."""
    attention_backward_s: Seconds = 0.0
    forward_work: DeviceAndHost = NO_WORK
    """Device and host seconds of the forward of one list of kernels, without one side waiting for the other."""
    backward_work: DeviceAndHost = NO_WORK
    recompute_work: DeviceAndHost = NO_WORK
    host_gain_s: Seconds = 0.0
    """Seconds that all phases would take less on a host as fast as the fastest of those measured."""
    host_loss_s: Seconds = 0.0
    """Seconds that all phases would take longer on a host as slow as the slowest of those measured."""

    def plus(self, other: "PhaseTimes", *, times: int) -> "PhaseTimes":
        """Sum with another, taken ``times`` times; a sum has no work of its own."""
        return PhaseTimes(
            forward_s=self.forward_s + times * other.forward_s,
            backward_s=self.backward_s + times * other.backward_s,
            weight_backward_s=self.weight_backward_s + times * other.weight_backward_s,
            recompute_s=self.recompute_s + times * other.recompute_s,
            optimizer_s=self.optimizer_s + times * other.optimizer_s,
            attention_forward_s=self.attention_forward_s + times * other.attention_forward_s,
            attention_backward_s=self.attention_backward_s + times * other.attention_backward_s,
            host_gain_s=self.host_gain_s + times * other.host_gain_s,
            host_loss_s=self.host_loss_s + times * other.host_loss_s,
        )


def operation_time_s(operation: Operation, *, gpu: Gpu, rates: KernelRates) -> Seconds:
    """Time of one execution of an operation on the device."""
    fraction = rates.memory_fraction
    if operation.kind == "optimizer":
        fraction = OPTIMIZER_FRACTION / rates.optimizer_ratio
    elif operation.name in ("loss", "loss.backward"):
        fraction = rates.loss_fraction
    if not operation.num_bytes and not operation.flop:
        return 0.0
    measured = rates.updates if operation.phase == "optimizer" else rates.moves
    moving_s = operation.num_bytes / (fraction * gpu.memory_bandwidth_bytes_per_s)
    if measured is not None:
        moving_s = measured.duration_s(operation.num_bytes) * (
            rates.optimizer_ratio if operation.kind == "optimizer" else 1.0
        )
    floor_s = operation.num_kernels * rates.floor_s
    if not operation.flop or operation.kind in ("memory", "optimizer"):
        return max(moving_s, floor_s)
    if operation.kind == "delta_rule":
        return _delta_rule_s(operation)
    if operation.kind == "attention":
        peak = gpu.peak_flop_per_s(operation.dtype)
        fraction = attention_fraction(operation, rates)
        computing_s = operation.slowdown_ratio * operation.flop / (peak * fraction) if peak else 0.0
        computing_s *= _attention_ratio(operation, rates)
        moving_s += _unaligned_s(operation, gpu)
    else:
        computing_s = _product_s(operation, rates) if gpu.peak_flop_per_s(operation.dtype) else 0.0
    return max(computing_s, moving_s, floor_s)


def _delta_rule_s(operation: Operation) -> Seconds:
    """Seconds of the kernels of a gated delta rule over the tokens of a micro-batch."""
    rate = DELTA_RULE_BACKWARD if operation.phase == "backward" else DELTA_RULE_FORWARD
    return operation.m * rate.token_s + operation.flop / rate.flop_per_s


def _unaligned_s(operation: Operation, gpu: Gpu) -> Seconds:
    """Seconds of the products of written-out attention whose rows are unaligned, beside which scores are moved."""
    if not operation.unaligned_flop or not gpu.peak_flop_per_s(operation.dtype):
        return 0.0
    return operation.unaligned_flop / unaligned_batched_flop_per_s(
        gpu,
        dtype=operation.dtype,
        out_features=operation.k,
        in_features=operation.n,
        is_forward=operation.phase != "backward",
    )


def _attention_ratio(operation: Operation, rates: KernelRates) -> float:
    """Measured over catalogued time of an attention core."""
    ratios = rates.attention_backward if operation.phase == "backward" else rates.attention_forward
    if ratios is None:
        return 1.0
    return ratios.at(attention_position(seq_len=min(operation.m, operation.n), head_dim=operation.k))


def _product_s(operation: Operation, rates: KernelRates) -> Seconds:
    """Seconds of a product, or of as many as the FLOP hold; experts' products share one grouped kernel."""
    times = operation.flop / (2.0 * operation.m * operation.n * operation.k)
    is_grouped = operation.kind == "grouped_matmul" and times > 1.5
    is_wgrad = operation.name.endswith(".wgrad")
    product = Product(
        product_pass="wgrad" if is_wgrad else "dgrad" if operation.name.endswith(".dgrad") else "forward",
        dtype=operation.dtype,
        m=operation.m,
        n=operation.n,
        k=operation.k,
        groups=round(times) if is_grouped else 1,
        is_grouped=is_grouped,
    )
    once_s = rates.products.duration_s(product) * (rates.accumulation_ratio if is_wgrad else 1.0)
    if operation.dtype == "fp8" and (is_wgrad or not is_grouped):
        once_s *= rates.tile_scaled_ratios[is_wgrad]
    return operation.slowdown_ratio * once_s * times / product.groups


def attention_fraction(operation: Operation, rates: KernelRates) -> float:
    """Share of the dense peak an attention core reaches when memory does not bound it."""
    length = max(1, min(operation.m, operation.n))
    attention, is_backward = rates.attention, operation.phase == "backward"
    half = attention.backward_half if is_backward else attention.forward_half
    limit = attention.backward_fraction if is_backward else attention.forward_fraction
    share = limit * saturation(x=length, half=half) * _attention_tail(operation, rates)
    return min(share, rates.attention_limit_fraction)


def _attention_tail(operation: Operation, rates: KernelRates) -> float:
    """Rate with few heads or short sequences, whose last tiles leave multiprocessors idle, over the fitted rate."""
    if rates.num_sms <= 1 or not operation.n or not operation.k:
        return 1.0
    is_backward = operation.phase == "backward"
    pairs = operation.flop / (ATTENTION_BACKWARD_RATIO if is_backward else 1.0) / (4.0 * operation.k)
    tiles = 2.0 * pairs / operation.n / ATTENTION_TILE_ROWS
    tail = ATTENTION_TAILS[is_backward]
    reference = saturation(x=ATTENTION_REFERENCE_ROUNDS, half=tail)
    return min(1.0, saturation(x=max(tiles / rates.num_sms, 1e-3), half=tail) / reference)


def durations_s(operations: Iterable[Operation], *, gpu: Gpu, rates: KernelRates) -> tuple[Seconds, ...]:
    """Time on the slowest device of every operation of a list, all its executions together."""
    return tuple(
        rates.slowest_ratio
        * operation.count
        * (operation_time_s(operation, gpu=gpu, rates=rates) + rates.dispatched_s(operation))
        for operation in operations
    )


def phase_times(
    operations: Iterable[Operation], *, gpu: Gpu, rates: KernelRates, durations: Sequence[Seconds] | None = None
) -> PhaseTimes:
    """Seconds of a list of operations by phase, each executed ``count`` times.

    Kernels queue on the device while the host issues further ones, so a phase of the list takes as long as the slower
    of the two.

    Args:
        operations: the list.
        gpu: the device that computes.
        rates: the rates of its kernels.
        durations: the operations' ``durations_s``, when known.
    """
    operations = tuple(operations)
    timed = durations_s(operations, gpu=gpu, rates=rates) if durations is None else durations
    device: dict[OperationPhase, Seconds] = dict.fromkeys(OPERATION_PHASES, 0.0)
    host: dict[OperationPhase, Seconds] = dict.fromkeys(OPERATION_PHASES, 0.0)
    attention: dict[OperationPhase, Seconds] = dict.fromkeys(OPERATION_PHASES, 0.0)
    weight_backward = 0.0
    for operation, duration in zip(operations, timed, strict=True):
        phase = operation.phase
        device[phase] += duration
        host[phase] += rates.issue_s(operation)
        if operation.kind == "attention":
            attention[phase] += duration
        elif operation.name.endswith(".wgrad"):
            weight_backward += duration
    fast, slow = HOST_PACES
    now_s = {phase: max(seconds, host[phase]) for phase, seconds in device.items()}
    gains = (now_s[phase] - max(seconds, fast * host[phase]) for phase, seconds in device.items() if seconds)
    losses = (max(seconds, slow * host[phase]) - now_s[phase] for phase, seconds in device.items() if seconds)
    waited_s = sum(operation.count * rates.blocking_s(operation) for operation in operations)
    slower = {phase: max(1.0, host[phase] / seconds) if seconds else 1.0 for phase, seconds in device.items()}
    return PhaseTimes(
        forward_s=slower["forward"] * device["forward"],
        backward_s=slower["backward"] * device["backward"],
        weight_backward_s=slower["backward"] * weight_backward,
        recompute_s=slower["recompute"] * device["recompute"],
        optimizer_s=device["optimizer"],
        attention_forward_s=slower["forward"] * attention["forward"],
        attention_backward_s=slower["backward"] * attention["backward"] + slower["recompute"] * attention["recompute"],
        forward_work=DeviceAndHost(device["forward"], host["forward"]),
        backward_work=DeviceAndHost(device["backward"], host["backward"]),
        recompute_work=DeviceAndHost(device["recompute"], host["recompute"]),
        host_gain_s=sum(gains) + (1 - fast) * waited_s,
        host_loss_s=sum(losses) + (slow - 1) * waited_s,
    )


def computed_again(once: PhaseTimes, again: PhaseTimes) -> PhaseTimes:
    """Times that recomputation adds to a block; selectively, its launches belong to the backward pass that they are in.

    Whole blocks are launched while the device runs them, as every phase of an eager host (``launches.py``). Where the
    host asks of every operation whether it is kept, it takes longer than the little that is repeated: a backward pass
    that waits for its device hides such launches. What keeping costs the forward pass is counted here, too.
    """
    if not again.forward_work.host_s:
        return again

    def added_s(pace: float) -> Seconds:
        forward, backward = once.forward_work.at_pace(pace), once.backward_work.at_pace(pace)
        both = forward.plus(again.forward_work.at_pace(pace), times=1).longest_s
        both += backward.plus(again.recompute_work.at_pace(pace), times=1).longest_s
        return both - forward.longest_s - backward.longest_s

    fast, slow = HOST_PACES
    recompute_s = added_s(1.0)
    return replace(
        again,
        recompute_s=recompute_s,
        forward_work=NO_WORK,
        recompute_work=DeviceAndHost(recompute_s, 0.0),
        host_gain_s=max(0.0, recompute_s - added_s(fast)),
        host_loss_s=max(0.0, added_s(slow) - recompute_s),
    )

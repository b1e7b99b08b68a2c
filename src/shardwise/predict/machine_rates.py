"""Seconds of what one machine does for a plan: catalogued rates, a calibration's tables, and what runs taught.

The full prediction and the search ask here and nowhere else, so that a calibration reaches both.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import log, log2

from shardwise.calibration import AttentionPoint, BlockPoint, TablesPoint
from shardwise.cluster import Cluster
from shardwise.engine import engine_profile
from shardwise.plan import EngineName, Plan
from shardwise.predict.calibrated_kernels import Ratios, attention_flop, attention_position, measured_rate
from shardwise.predict.calibrated_parts import block_of, tables_of
from shardwise.predict.compute import PhaseTimes, durations_s, operation_time_s, phase_times
from shardwise.predict.kernel_rates import KernelRates, kernel_rates
from shardwise.step.block_operations import UNIT_CALLS_NAME
from shardwise.step.inventory import Operation, OperationPhase
from shardwise.step.operation_context import ATTENTION_BACKWARD_RATIO
from shardwise.step.operations import GroupPart
from shardwise.units import BytesPerSecond, Seconds

DEFAULT_HEAD_DIM = 128
LEAST_RATIO, MOST_RATIO = 0.4, 4.0
"""Blocks that take less or more than this of what their kernels do were disturbed while they were timed."""
HOST_BOUND_RATIO = 1.02
"""A block whose host needs so much longer than its kernels says nothing about them."""


@dataclass(frozen=True, slots=True)
class PartRatio:
    """Measured over predicted time of a part of the model whose kernels take so long."""

    predicted_s: Seconds
    forward_ratio: float
    backward_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PartRatios:
    """By part, those of single blocks and of blocks that FSDP gathers apart."""

    blocks: tuple[PartRatio, ...] = ()
    gathered_blocks: tuple[PartRatio, ...] = ()
    tables: tuple[PartRatio, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineRates:
    """Times operations of one plan's cluster and engine."""

    cluster: Cluster
    kernels: KernelRates
    parts: PartRatios = PartRatios()

    def durations_s(self, operations: tuple[Operation, ...], *, part: GroupPart = "blocks") -> tuple[Seconds, ...]:
        """Seconds on the device of operations that run one after the other, each with all its executions."""
        durations = durations_s(operations, gpu=self.cluster.gpu, rates=self.kernels)
        if not self.parts.blocks:
            return durations
        known: tuple[PartRatio, ...] = ()
        if part in ("blocks", "recomputed blocks"):
            known = self.parts.gathered_blocks if _is_gathered(operations) else self.parts.blocks
            known = known or self.parts.blocks
        elif part in ("embedding", "head"):
            known = self.parts.tables
        return _scaled(operations, durations, known)

    def phase_times(self, operations: tuple[Operation, ...], *, durations: Sequence[Seconds]) -> PhaseTimes:
        """Seconds by phase, the host's issuing included."""
        return phase_times(operations, gpu=self.cluster.gpu, rates=self.kernels, durations=durations)

    def operation_s(self, operation: Operation) -> Seconds:
        """One kernel on the slowest device."""
        return self.kernels.slowest_ratio * operation_time_s(operation, gpu=self.cluster.gpu, rates=self.kernels)

    @property
    def moves_bytes_per_s(self) -> BytesPerSecond:
        """Of elementwise kernels too large for a cache."""
        if self.kernels.moves is not None:
            return self.kernels.moves.largest_bytes_per_s
        return self.kernels.memory_fraction * self.cluster.gpu.memory_bandwidth_bytes_per_s


def _is_gathered(operations: tuple[Operation, ...]) -> bool:
    return any(operation.name == UNIT_CALLS_NAME for operation in operations)


def _scaled(
    operations: Sequence[Operation], durations: tuple[Seconds, ...], known: tuple[PartRatio, ...]
) -> tuple[Seconds, ...]:
    """Durations times the ratio of the parts whose kernels take about as long, each direction its own."""
    total_s = sum(durations)
    if not known or not total_s:
        return durations
    position = (log2(total_s),)
    forward = Ratios(tuple(((log2(part.predicted_s),), log(part.forward_ratio)) for part in known)).at(position)
    backward = Ratios(tuple(((log2(part.predicted_s),), log(part.backward_ratio)) for part in known)).at(position)
    return tuple(
        (backward if operation.phase == "backward" else forward) * duration_s
        for operation, duration_s in zip(operations, durations, strict=True)
    )


def machine_rates(plan: Plan, *, num_gpus: int = 1) -> MachineRates:
    """The rates of a plan's cluster under its engine and its heads; all of ``num_gpus`` wait for the slowest."""
    calibration = plan.cluster.calibration
    kernels = _kernels(plan, num_gpus=num_gpus)
    if calibration is None:
        return MachineRates(cluster=plan.cluster, kernels=kernels)
    host_ratio = calibration.ratio_of("host")
    kernels = replace(
        kernels,
        slowest_ratio=kernels.slowest_ratio * calibration.ratio_of("compute"),
        host_forward_s=host_ratio * kernels.host_forward_s,
        host_backward_s=host_ratio * kernels.host_backward_s,
        call_forward_s=host_ratio * kernels.call_forward_s,
        call_backward_s=host_ratio * kernels.call_backward_s,
    )
    runs_eagerly = plan.engine == "native" and not plan.recipe.compile
    parts = _part_ratios(plan.cluster) if runs_eagerly else PartRatios()
    return MachineRates(cluster=plan.cluster, kernels=kernels, parts=parts)


def _kernels(plan: Plan, *, num_gpus: int = 1) -> KernelRates:
    """Rates by the catalogue and a calibration's tables."""
    attention, calibration = plan.model.attention, plan.cluster.calibration
    rates = kernel_rates(
        gpu=plan.cluster.gpu,
        profile=engine_profile(plan.engine),
        head_dim=attention.head_dim if attention else DEFAULT_HEAD_DIM,
        is_compiled=plan.recipe.compile,
        num_gpus=num_gpus,
        calibration=calibration,
    )
    if calibration is None or not calibration.is_measured:
        return rates
    rates = replace(
        rates,
        moves=measured_rate(calibration.moves),
        updates=measured_rate(calibration.optimizer),
        attention_forward=_attention_ratios(plan.cluster, plan.engine, "forward"),
        attention_backward=_attention_ratios(plan.cluster, plan.engine, "backward"),
    )
    if calibration.runs_on_processors:
        launch_s = calibration.kernel_launch_s or 0.0
        rates = replace(rates, dispatch_s=launch_s, floor_s=0.0, host_forward_s=0.0, host_backward_s=0.0)
        return replace(rates, call_forward_s=0.0, call_backward_s=0.0)
    host = _host_s(plan.cluster)
    if host is None:
        return rates
    rates = replace(rates, call_forward_s=host[0], call_backward_s=host[1])
    return rates if plan.recipe.compile else replace(rates, host_forward_s=host[0], host_backward_s=host[1])


@cache
def _attention_ratios(cluster: Cluster, engine: EngineName, phase: OperationPhase) -> Ratios:
    """Measured over catalogued time of the cores that were timed; of torch's kernels, so of engines that run them."""
    calibration, gpu, profile = cluster.calibration, cluster.gpu, engine_profile(engine)
    if calibration is None or profile.sharding == "megatron":
        return Ratios(())
    points = []
    for point in calibration.attention:
        core = _core(point, phase)
        catalogued_s = operation_time_s(
            core, gpu=gpu, rates=kernel_rates(gpu=gpu, profile=profile, head_dim=point.head_dim)
        )
        measured_s = point.backward_s if phase == "backward" else point.forward_s
        if catalogued_s:
            position = attention_position(seq_len=point.seq_len, head_dim=point.head_dim)
            points.append((position, log(measured_s / catalogued_s)))
    return Ratios(tuple(points))


def _core(point: AttentionPoint, phase: OperationPhase) -> Operation:
    """The timed core as the inventory lists it; nothing moved, so that only its FLOP count."""
    return Operation(
        name="core",
        kind="attention",
        phase=phase,
        count=1,
        flop=attention_flop(point) * (ATTENTION_BACKWARD_RATIO if phase == "backward" else 1.0),
        num_bytes=0,
        dtype="bf16" if point.dtype == "bf16" else "fp32",
        m=point.seq_len,
        n=point.seq_len,
        k=point.head_dim,
    )


@cache
def _host_s(cluster: Cluster) -> tuple[Seconds, Seconds] | None:
    """Host time per kernel, forward and backward, of the block whose kernels keep the device least busy."""
    calibration = cluster.calibration
    if calibration is None or not calibration.blocks:
        return None
    point = min(calibration.blocks, key=lambda point: (point.hidden_size * point.num_tokens, not point.is_sharded))
    operations = block_of(point, replace(cluster, calibration=None)).forward_and_backward
    kernels = [sum(op.num_kernels for op in operations if op.phase == phase) for phase in ("forward", "backward")]
    return point.forward_s / kernels[0], point.backward_s / kernels[1]


@cache
def _part_ratios(cluster: Cluster) -> PartRatios:
    """What blocks and tables took over what their kernels take by the calibration's own tables."""
    calibration = cluster.calibration
    if calibration is None:
        return PartRatios()
    blocks = [(point, _block_ratio(point, cluster)) for point in calibration.blocks]
    return PartRatios(
        blocks=tuple(ratio for point, ratio in blocks if not point.is_sharded and ratio is not None),
        gathered_blocks=tuple(ratio for point, ratio in blocks if point.is_sharded and ratio is not None),
        tables=tuple(ratio for point in calibration.tables if (ratio := _tables_ratio(point, cluster)) is not None),
    )


def _block_ratio(point: BlockPoint, cluster: Cluster) -> PartRatio | None:
    """Of a block whose kernels decide its time; ``None`` of one that waits for its host."""
    timed = block_of(point, cluster)
    return _ratio_of(timed.forward_and_backward, _kernels(timed.plan), cluster, (point.forward_s, point.backward_s))


def _tables_ratio(point: TablesPoint, cluster: Cluster) -> PartRatio | None:
    """Of tables, whose loss computes its gradients with the forward pass: one ratio for both."""
    timed = tables_of(point, cluster)
    kernels = _kernels(timed.plan)
    total_s = sum(durations_s(timed.tables, gpu=cluster.gpu, rates=kernels))
    if not total_s:
        return None
    ratio = _bounded(point.duration_s / total_s)
    return PartRatio(predicted_s=total_s, forward_ratio=ratio, backward_ratio=ratio)


def _ratio_of(
    operations: tuple[Operation, ...], kernels: KernelRates, cluster: Cluster, measured: tuple[Seconds, Seconds]
) -> PartRatio | None:
    durations = durations_s(operations, gpu=cluster.gpu, rates=kernels)
    device = {"forward": 0.0, "backward": 0.0}
    for operation, duration_s in zip(operations, durations, strict=True):
        device[operation.phase] += duration_s
    times = phase_times(operations, gpu=cluster.gpu, rates=kernels, durations=durations)
    longer = {"forward": times.forward_s, "backward": times.backward_s}
    waits = any(longer[phase] > HOST_BOUND_RATIO * seconds for phase, seconds in device.items())
    if waits or not all(device.values()):
        return None
    forward_s, backward_s = measured
    return PartRatio(
        predicted_s=sum(device.values()),
        forward_ratio=_bounded(forward_s / device["forward"]),
        backward_ratio=_bounded(backward_s / device["backward"]),
    )


def _bounded(ratio: float) -> float:
    return max(LEAST_RATIO, min(MOST_RATIO, ratio))

"""Seconds of what one machine does for a plan: catalogued rates, a calibration's tables, and what runs taught.

The full prediction and the search ask here and nowhere else, so that a calibration reaches both.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import log, log2
from statistics import median

from shardwise.attention_kernels import AttentionCall, AttentionKernel
from shardwise.calibration import AttentionPoint, BlockPoint, TablesPoint
from shardwise.cluster import Cluster
from shardwise.engines.profile import has_foreach_optimizer
from shardwise.engines.table import OWN_ENGINE, EngineName, engine_profile
from shardwise.plan import Plan
from shardwise.predict.calibrated_kernels import Ratios, attention_flop, attention_position, measured_rate
from shardwise.predict.calibrated_parts import TimedPart, block_of, tables_of
from shardwise.predict.compute import PhaseTimes, durations_s, operation_time_s, phase_times
from shardwise.predict.kernel_rates import KernelRates, kernel_rates
from shardwise.step.attention_kernel import attention_kernel, fastest_kernel
from shardwise.step.block_operations import GATHERED_HOST_CALLS, HOST_CALLS
from shardwise.step.inventory import Operation, OperationPhase
from shardwise.step.native_engine import is_native_engine
from shardwise.step.operation_context import ATTENTION_BACKWARD_RATIO
from shardwise.step.operations import GroupPart
from shardwise.units import BytesPerSecond, Seconds

DEFAULT_HEAD_DIM = 128
LEAST_RATIO, MOST_RATIO = 0.25, 6.0
"""Blocks that take less or more than this of what their kernels do were disturbed while they were timed."""
HOST_BOUND_RATIO = 1.02
"""A block whose host needs so much longer than its kernels says nothing about them."""


@dataclass(frozen=True, slots=True)
class PartRatio:
    """Ratio of timed to tabled seconds of the kernels that follow their part (:func:`follows_its_part`)."""

    predicted_s: Seconds
    forward_ratio: float
    backward_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PartRatios:
    """Ratios of timed parts: single blocks, blocks that FSDP gathers, and the embedding with the head."""

    is_compiled: bool = False
    """Whether the parts were timed compiled."""
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
        known: tuple[PartRatio, ...] = ()
        if part in ("blocks", "recomputed blocks"):
            known = self.parts.gathered_blocks if _is_gathered(operations) else self.parts.blocks
            known = known or self.parts.blocks
        elif part in ("embedding", "head"):
            known = self.parts.tables
        return _scaled(operations, durations, known, is_compiled=self.parts.is_compiled)

    def phase_times(self, operations: tuple[Operation, ...], *, durations: Sequence[Seconds]) -> PhaseTimes:
        """Seconds by phase, the host's issuing included."""
        return phase_times(operations, gpu=self.cluster.gpu, rates=self.kernels, durations=durations)

    def operation_s(self, operation: Operation) -> Seconds:
        """One kernel on the slowest device."""
        return self.kernels.slowest_ratio * operation_time_s(operation, gpu=self.cluster.gpu, rates=self.kernels)

    @property
    def moves_bytes_per_s(self) -> BytesPerSecond:
        """Bytes per second that elementwise kernels move when their tensors are too large for a cache."""
        if self.kernels.moves is not None:
            return self.kernels.moves.largest_bytes_per_s
        return self.kernels.memory_fraction * self.cluster.gpu.memory_bandwidth_bytes_per_s


def _is_gathered(operations: tuple[Operation, ...]) -> bool:
    return any(operation.name == GATHERED_HOST_CALLS for operation in operations)


def _scaled(
    operations: Sequence[Operation], durations: tuple[Seconds, ...], known: tuple[PartRatio, ...], *, is_compiled: bool
) -> tuple[Seconds, ...]:
    """Durations, of kernels that follow their part times the ratio of the parts whose kernels take about as long."""
    total_s = sum(durations)
    if not known or not total_s:
        return durations
    position = (log2(total_s),)
    forward = Ratios(tuple(((log2(part.predicted_s),), log(part.forward_ratio)) for part in known)).at(position)
    backward = Ratios(tuple(((log2(part.predicted_s),), log(part.backward_ratio)) for part in known)).at(position)
    return tuple(
        (backward if operation.phase == "backward" else forward) * duration_s
        if follows_its_part(operation, is_compiled=is_compiled)
        else duration_s
        for operation, duration_s in zip(operations, durations, strict=True)
    )


def follows_its_part(operation: Operation, *, is_compiled: bool) -> bool:
    """Whether what a timed part takes longer or shorter than its kernels' tables is laid to an operation.

    In eager parts that is the time between products and attention, which are timed by themselves: traces show them to
    take what loops say. Compiled parts hold few other kernels, fused into larger ones than any that is timed, and keep
    the device at its power limit: all their kernels follow, but 8-bit products, which no part holds.
    """
    if operation.name.startswith(HOST_CALLS):
        return False
    if is_compiled:
        return operation.dtype != "fp8"
    return operation.kind not in ("matmul", "grouped_matmul", "attention")


def machine_rates(plan: Plan, *, num_gpus: int = 1) -> MachineRates:
    """The rates of a plan's cluster under its engine and its heads; all of ``num_gpus`` wait for the slowest."""
    calibration = plan.cluster.calibration
    kernels = _kernels(plan, num_gpus=num_gpus)
    if calibration is None:
        return MachineRates(cluster=plan.cluster, kernels=kernels)
    host_ratio = calibration.ratio_of("host")
    kernels = replace(kernels, slowest_ratio=kernels.slowest_ratio * calibration.ratio_of("compute"))
    kernels = _with_host_times(kernels, tuple(host_ratio * seconds for seconds in _host_times(kernels)))
    parts = _part_ratios(plan.cluster, is_compiled=plan.recipe.compile) if is_native_engine(plan) else PartRatios()
    return MachineRates(cluster=plan.cluster, kernels=kernels, parts=parts)


def _kernels(plan: Plan, *, num_gpus: int = 1) -> KernelRates:
    """Rates by the catalogue and a calibration's tables."""
    attention, calibration = plan.model.attention, plan.cluster.calibration
    head_dim = attention.head_dim if attention else DEFAULT_HEAD_DIM
    rates = kernel_rates(
        gpu=plan.cluster.gpu,
        profile=engine_profile(plan.engine),
        head_dim=head_dim,
        attention=_rated_kernel(plan),
        is_compiled=plan.recipe.compile,
        is_foreach=has_foreach_optimizer(profile=engine_profile(plan.engine), recipe=plan.recipe),
        num_gpus=num_gpus,
        calibration=calibration,
    )
    rates = replace(rates, is_blocking=plan.recipe.blocking_launches)
    if calibration is None or not calibration.is_measured:
        return rates
    # A sum of two tensors stands for compiled kernels only where a compiled block says by how much they differ.
    is_told = not plan.recipe.compile or calibration.has_compiled_blocks
    rates = replace(
        rates,
        moves=measured_rate(calibration.moves) if is_told else None,
        updates=measured_rate(calibration.optimizer),
    )
    if attends_as_timed(plan):
        rates = replace(
            rates,
            attention_forward=_attention_ratios(plan.cluster, plan.engine, "forward"),
            attention_backward=_attention_ratios(plan.cluster, plan.engine, "backward"),
        )
    if calibration.runs_on_cpu:
        launch_s = calibration.kernel_launch_s or 0.0
        call_s = _cpu_call_s(plan.cluster)
        dispatched = replace(rates, dispatch_s=launch_s, dispatch_call_s=launch_s if call_s is None else call_s)
        return replace(_with_host_times(dispatched, (0.0,) * 5), floor_s=0.0)
    return _with_host(rates, plan)


def _host_times(rates: KernelRates) -> tuple[Seconds, ...]:
    passes = (rates.host_forward_s, rates.host_backward_s, rates.host_recompute_s)
    return (*passes, rates.call_forward_s, rates.call_backward_s)


def _with_host_times(rates: KernelRates, times: tuple[Seconds, ...]) -> KernelRates:
    """Rates with a host time of a kernel forward, backward and recomputed, and of a call forward and backward."""
    forward_s, backward_s, recompute_s, call_forward_s, call_backward_s = times
    return replace(
        rates,
        host_forward_s=forward_s,
        host_backward_s=backward_s,
        host_recompute_s=recompute_s,
        call_forward_s=call_forward_s,
        call_backward_s=call_backward_s,
    )


def _with_host(rates: KernelRates, plan: Plan) -> KernelRates:
    """Rates with the host as blocks told it whose kernels keep the device least busy."""
    call_s = _call_s(plan.cluster)
    if call_s is not None:
        rates = replace(rates, call_forward_s=call_s, call_backward_s=call_s)
    host = None if plan.recipe.compile else _host_s(plan.cluster)
    if host is None:
        return rates
    return replace(rates, host_forward_s=host[0], host_backward_s=host[1], host_recompute_s=host[0])


def _rated_kernel(plan: Plan) -> AttentionKernel:
    """The kernel whose rate bounds the products of attention."""
    kernel = attention_kernel(plan)
    return fastest_kernel(plan) if kernel == "math" or plan.recipe.precision == "fp32" else kernel


def attends_as_timed(plan: Plan) -> bool:
    """Whether the kernel attends that a calibration times, which is our trainer's by itself; CPUs have one."""
    calibration = plan.cluster.calibration
    if calibration is not None and calibration.runs_on_cpu:
        return True
    return attention_kernel(plan) in ("math", _timed_kernel(plan.cluster))


def _timed_kernel(cluster: Cluster) -> AttentionKernel:
    """The attention kernel that our trainer chooses for the heads that a calibration times."""
    return engine_profile(OWN_ENGINE).default_attention_kernel(AttentionCall(arch=cluster.gpu.arch))


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
            core,
            gpu=gpu,
            rates=kernel_rates(gpu=gpu, profile=profile, head_dim=point.head_dim, attention=_timed_kernel(cluster)),
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
    """Host time per kernel, forward and backward, of the smallest block that nothing gathers."""
    point = _smallest_block(cluster, is_sharded=False)
    if point is None:
        return None
    counts = _kernel_counts(point, cluster)
    return point.forward_s / counts.num_forward, point.backward_s / counts.num_backward


@cache
def _call_s(cluster: Cluster) -> Seconds | None:
    """Host time of a call around kernels: what gathering adds to the smallest block."""
    alone, gathered = (_smallest_block(cluster, is_sharded=is_sharded) for is_sharded in (False, True))
    if alone is None or gathered is None or alone.sizes != gathered.sizes:
        return None
    counts = _kernel_counts(gathered, cluster)
    more_s = gathered.forward_s + gathered.backward_s - alone.forward_s - alone.backward_s
    return max(0.0, more_s) / counts.num_calls if counts.num_calls else None


@cache
def _cpu_call_s(cluster: Cluster) -> Seconds | None:
    """Host time per call around a gathered block where CPUs compute, less the copies of its weights and gradients.

    The median over blocks that were timed alone and gathered; ``None`` where none was timed in both ways.
    """
    calibration = cluster.calibration
    if calibration is None:
        return None
    moves, found = measured_rate(calibration.moves), list[Seconds]()
    eager = [point for point in calibration.blocks if not point.is_compiled]
    alone = {point.sizes: point for point in eager if not point.is_sharded}
    for point in eager:
        if not point.is_sharded or point.sizes not in alone or moves is None:
            continue
        more_s = point.forward_s + point.backward_s - alone[point.sizes].forward_s - alone[point.sizes].backward_s
        copies_s = sum(moves.duration_s(copy.num_bytes) for copy in block_of(point, _uncalibrated(cluster)).copies)
        found.append(max(0.0, more_s - copies_s) / _kernel_counts(point, cluster).num_calls)
    return median(found) if found else None


def _uncalibrated(cluster: Cluster) -> Cluster:
    return replace(cluster, calibration=None)


def _smallest_block(cluster: Cluster, *, is_sharded: bool) -> BlockPoint | None:
    points = cluster.calibration.blocks if cluster.calibration else ()
    fitting = [point for point in points if point.is_sharded == is_sharded and not point.is_compiled]
    return min(fitting, key=lambda point: point.hidden_size * point.num_tokens, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelCounts:
    """Numbers of kernels that the host issues for one block."""

    num_forward: int
    num_backward: int
    num_calls: int
    """Host work around the kernels of both passes, as the number of kernels that take as long to issue."""


def _kernel_counts(point: BlockPoint, cluster: Cluster) -> KernelCounts:
    operations = block_of(point, _uncalibrated(cluster)).forward_and_backward
    kernels = [operation for operation in operations if not operation.name.startswith(HOST_CALLS)]
    forward, backward = (
        sum(operation.num_kernels for operation in kernels if operation.phase == phase)
        for phase in ("forward", "backward")
    )
    return KernelCounts(
        num_forward=forward,
        num_backward=backward,
        num_calls=sum(operation.num_kernels for operation in operations) - forward - backward,
    )


@cache
def _part_ratios(cluster: Cluster, *, is_compiled: bool) -> PartRatios:
    """Ratio of seconds that blocks and tables took to those of their kernels in the calibration; tables ran eagerly."""
    calibration = cluster.calibration
    if calibration is None:
        return PartRatios()
    # On CPUs calls and copies account for what gathering adds; the kernels between them are the same.
    is_told_apart = calibration.runs_on_cpu and _cpu_call_s(cluster) is not None
    own = [point for point in calibration.blocks if point.is_compiled == is_compiled]
    points = [point for point in own if not (point.is_sharded and is_told_apart)]
    blocks = [(point, _block_ratio(point, cluster)) for point in points]
    tables = () if is_compiled else calibration.tables
    return PartRatios(
        blocks=tuple(ratio for point, ratio in blocks if not point.is_sharded and ratio is not None),
        gathered_blocks=tuple(ratio for point, ratio in blocks if point.is_sharded and ratio is not None),
        tables=tuple(ratio for point in tables if (ratio := _tables_ratio(point, cluster)) is not None),
        is_compiled=is_compiled,
    )


def _block_ratio(point: BlockPoint, cluster: Cluster) -> PartRatio | None:
    """Timed over tabled seconds of a block whose kernels decide its time; ``None`` for one that waits for its host."""
    timed = block_of(point, cluster)
    measured = (point.forward_s, point.backward_s)
    return _ratio_of(timed, _kernels(timed.plan), measured)


def _tables_ratio(point: TablesPoint, cluster: Cluster) -> PartRatio | None:
    """Timed over tabled seconds of the embedding and the head: one ratio for both passes, because the loss computes its
    gradients with the forward pass."""
    timed = tables_of(point, cluster)
    durations = durations_s(timed.tables, gpu=cluster.gpu, rates=_kernels(timed.plan))
    total_s, between_s = sum(durations), _following_s(timed.tables, durations, is_compiled=False)
    if not between_s:
        return None
    ratio = _bounded((point.duration_s - total_s + between_s) / between_s)
    return PartRatio(predicted_s=total_s, forward_ratio=ratio, backward_ratio=ratio)


def _ratio_of(timed: TimedPart, kernels: KernelRates, measured: tuple[Seconds, Seconds]) -> PartRatio | None:
    operations, gpu, is_compiled = timed.forward_and_backward, timed.plan.cluster.gpu, timed.plan.recipe.compile
    durations = durations_s(operations, gpu=gpu, rates=kernels)
    times = phase_times(operations, gpu=gpu, rates=kernels, durations=durations)
    ratios = []
    for phase, longer_s, measured_s in zip(
        ("forward", "backward"), (times.forward_s, times.backward_s), measured, strict=True
    ):
        own = [(one, duration) for one, duration in zip(operations, durations, strict=True) if one.phase == phase]
        device_s = sum(duration for _, duration in own)
        following = [one for one, _ in own], [duration for _, duration in own]
        between_s = _following_s(*following, is_compiled=is_compiled)
        if not between_s or longer_s > HOST_BOUND_RATIO * device_s:
            return None
        ratios.append(_bounded((measured_s - device_s + between_s) / between_s))
    return PartRatio(predicted_s=sum(durations), forward_ratio=ratios[0], backward_ratio=ratios[1])


def _following_s(operations: Sequence[Operation], durations: Sequence[Seconds], *, is_compiled: bool) -> Seconds:
    """Seconds of the operations that follow their part."""
    return sum(
        duration
        for operation, duration in zip(operations, durations, strict=True)
        if follows_its_part(operation, is_compiled=is_compiled)
    )


def _bounded(ratio: float) -> float:
    return max(LEAST_RATIO, min(MOST_RATIO, ratio))

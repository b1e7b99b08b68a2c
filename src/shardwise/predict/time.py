"""Step time of a plan and the rates that follow from it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from shardwise.ledger import TimeComponent
from shardwise.plan import Plan
from shardwise.predict.model_flop import MFU_CONVENTION, model_flop_per_token
from shardwise.predict.offload_time import OffloadTime, offload_time
from shardwise.predict.pipeline_time import (
    CLOSED_SCHEDULES,
    MicroBatchTimes,
    pipeline_duration,
    pipeline_time_s,
)
from shardwise.predict.stage_time import CollectiveTime, StageClock, StageTime
from shardwise.prediction import CommunicationEntry, Throughput, TimeEntry, TimePrediction
from shardwise.step.operation_context import MATMUL_DTYPES, usable_dtype
from shardwise.step.placement import Stage, pipeline_stages
from shardwise.step.stage_context import StageContext
from shardwise.units import Seconds

STEP_LOW_RATIO = 0.90
STEP_HIGH_RATIO = 1.35
"""Band on the step time until residuals on measured runs replace it: a prior, not a fit. Published errors of predictors
without measurements of the system at hand: 8.4 % on one node and 14.7 % on several (vTrain), 5.0 to 9.4 %
(arXiv:2509.22832); sums of kernels are optimistic, up to 13.5 % even with measured ones (SimuMax,
docs/FULL_RESULTS.md). Ours carries one part's kernels to others and leaves out contention, stragglers and data
loading, so the upper side is the wider."""


def predict_time(plan: Plan) -> tuple[TimePrediction, Throughput]:
    """Step time with its parts, and tokens per second, MFU and HFU."""
    stages = pipeline_stages(model=plan.model, layout=plan.layout)
    clock = StageClock(plan)
    times = [clock.stage_time(stage) for stage in stages]
    offloads = _offloads(plan, stages, times)
    critical = max(range(len(stages)), key=lambda index: _own_s(times[index], offloads[index]))
    waiting = _waiting(plan, stages, times, critical)
    slowest = _with_sends(times[critical], waiting.sends_s)
    components = _components(slowest, offloads[critical], waiting.bubble_s)
    step_s = sum(entry.duration_s for entry in components)
    prediction = TimePrediction(
        step_s=step_s,
        step_low_s=STEP_LOW_RATIO * step_s,
        step_high_s=STEP_HIGH_RATIO * step_s,
        components=components,
        communication=_communication(slowest.collectives),
    )
    return prediction, _throughput(plan, times, step_s)


def _offloads(plan: Plan, stages: Sequence[Stage], times: Sequence[StageTime]) -> list[OffloadTime]:
    if plan.recipe.offload == "none" and not plan.recipe.activation_offload:
        return [OffloadTime(copies_s=0.0, update_s=0.0)] * len(stages)
    return [
        offload_time(StageContext(plan=plan, stage=stage), time.compute)
        for stage, time in zip(stages, times, strict=True)
    ]


def _own_s(time: StageTime, offload: OffloadTime) -> Seconds:
    """Everything a stage does in a step, without waiting for other stages."""
    return time.busy_s + time.step_exposed_s + time.compute.optimizer_s + offload.total_s


@dataclass(frozen=True, slots=True, kw_only=True)
class _Waiting:
    """What a pipeline adds to its critical stage."""

    bubble_s: Seconds
    sends_s: Seconds
    """Of its own sends beside computation; what it waits for those of others is part of the bubble."""


def _waiting(plan: Plan, stages: Sequence[Stage], times: Sequence[StageTime], critical: int) -> _Waiting:
    """Time the critical stage waits for other stages."""
    if len(times) == 1:
        return _Waiting(bubble_s=0.0, sends_s=0.0)
    busy_s = times[critical].busy_s
    if plan.layout.schedule not in CLOSED_SCHEDULES:
        chunks = {
            chunk.index: own
            for stage, time in zip(stages, times, strict=True)
            for chunk, own in zip(stage.chunks, time.chunks, strict=True)
        }
        in_order = [chunks[index] for index in range(len(chunks))]
        found = pipeline_duration(plan, chunks=in_order, send_s=_send_s(times))
        if found is not None:
            own_s = sum(call.total_s for call in times[critical].collectives if _is_send(call))
            sends_s = min(found.sends_s, own_s, max(0.0, found.total_s - busy_s))
            return _Waiting(bubble_s=max(0.0, found.total_s - sends_s - busy_s), sends_s=sends_s)
    per_micro_batch = [_micro_batch(time, plan.num_microbatches) for time in times]
    whole_s = pipeline_time_s(stages=per_micro_batch, layout=plan.layout, num_microbatches=plan.num_microbatches)
    return _Waiting(bubble_s=max(0.0, whole_s - busy_s), sends_s=0.0)


def _send_s(times: Iterable[StageTime]) -> Seconds:
    """One message between neighbours; all of them carry the same activations."""
    sends = (time for stage in times for time in stage.collectives if _is_send(time))
    return next((time.total_s / time.collective.count for time in sends), 0.0)


def _is_send(time: CollectiveTime) -> bool:
    """Whether a record is a message that its schedule runs beside computation."""
    return time.collective.kind == "send_recv" and time.collective.axis == "pp" and time.collective.is_overlappable


def _with_sends(time: StageTime, sends_s: Seconds) -> StageTime:
    """The stage with what the pipeline found exposed of its messages."""
    total_s = sum(call.total_s for call in time.collectives if _is_send(call))
    if not sends_s or not total_s:
        return time
    share = sends_s / total_s
    return replace(
        time,
        collectives=tuple(
            replace(call, exposed_s=share * call.total_s) if _is_send(call) else call for call in time.collectives
        ),
    )


def _micro_batch(time: StageTime, num_microbatches: int) -> MicroBatchTimes:
    compute = time.compute
    waited: dict[str, Seconds] = {"forward": 0.0, "backward": 0.0, "recompute": 0.0, "optimizer": 0.0}
    for entry in time.per_micro_batch:
        waited[entry.collective.phase] += entry.exposed_s
    input_backward = compute.backward_s - compute.weight_backward_s + compute.recompute_s
    return MicroBatchTimes(
        forward_s=(compute.forward_s + waited["forward"]) / num_microbatches,
        input_backward_s=(input_backward + waited["backward"] + waited["recompute"]) / num_microbatches,
        weight_backward_s=compute.weight_backward_s / num_microbatches,
    )


def _components(time: StageTime, offload: OffloadTime, bubble_s: Seconds) -> tuple[TimeEntry, ...]:
    compute = time.compute
    durations: tuple[tuple[TimeComponent, Seconds], ...] = (
        ("forward", compute.forward_s),
        ("backward", compute.backward_s),
        ("recompute", compute.recompute_s),
        ("optimizer", compute.optimizer_s),
        ("exposed_communication", time.model_parallel_exposed_s + time.step_exposed_s),
        ("pipeline_bubble", bubble_s),
        ("offload", offload.total_s),
        ("other", 0.0),
    )
    return tuple(TimeEntry(component=component, duration_s=duration_s) for component, duration_s in durations)


def _communication(times: Iterable[CollectiveTime]) -> tuple[CommunicationEntry, ...]:
    """Entries by name, payload and group; what is hidden and what is not of one call are added up."""
    merged: dict[tuple[str, str, int, int], CommunicationEntry] = {}
    for time in times:
        call = time.collective
        key = (call.name, call.axis, call.group_size, call.num_bytes)
        before = merged.get(key)
        merged[key] = CommunicationEntry(
            name=call.name,
            kind=call.kind,
            axis=call.axis,
            group_size=call.group_size,
            num_bytes=call.num_bytes,
            count=call.count + (before.count if before else 0),
            total_s=time.total_s + (before.total_s if before else 0.0),
            exposed_s=time.exposed_s + (before.exposed_s if before else 0.0),
        )
    return tuple(merged.values())


def _throughput(plan: Plan, times: Sequence[StageTime], step_s: Seconds) -> Throughput:
    dtype = usable_dtype(MATMUL_DTYPES[plan.recipe.precision], plan.cluster.gpu)
    dtype = "bf16" if dtype == "fp8" else dtype
    peak = plan.cluster.gpu.peak_flop_per_s(dtype)
    world = plan.layout.world_size
    is_frozen = plan.recipe.adapter != "none"
    per_token = model_flop_per_token(plan.model, seq_len=plan.recipe.seq_len, is_base_frozen=is_frozen)
    per_step = per_token * plan.tokens_per_step
    mfu = per_step / (step_s * world * peak) if peak else 0.0
    tokens_per_s = plan.tokens_per_step / step_s
    return Throughput(
        tokens_per_s=tokens_per_s,
        tokens_per_s_per_gpu=tokens_per_s / world,
        mfu_fraction=mfu,
        hfu_fraction=mfu * (1 + _recomputed_fraction(times) / (2 if is_frozen else 3)),
        mfu_convention=f"{MFU_CONVENTION}; dense {dtype} peak",
        model_flop_per_step=per_step,
        peak_flop_per_s=peak,
    )


def _recomputed_fraction(times: Sequence[StageTime]) -> float:
    """Share of the forward FLOP that runs a second time."""
    forward = sum(time.forward_flop for time in times)
    return sum(time.recompute_flop for time in times) / forward if forward else 0.0

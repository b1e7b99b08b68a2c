"""Everything a step prediction consists of, before it is summed up."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from shardwise.plan import Plan
from shardwise.predict.offload_time import OffloadTime, offload_time
from shardwise.predict.pipeline_time import (
    CLOSED_SCHEDULES,
    MicroBatchTimes,
    pipeline_duration,
    pipeline_time_s,
)
from shardwise.predict.stage_time import CollectiveTime, StageClock, StageTime
from shardwise.predict.stage_work import stage_work
from shardwise.simulate.pipeline_times import ChunkTimes
from shardwise.step.placement import Stage, pipeline_stages
from shardwise.step.stage_context import StageContext
from shardwise.units import Seconds


@dataclass(frozen=True, kw_only=True)
class StepParts:
    """The stages of one step, the one that decides, and what it waits for."""

    clock: StageClock
    stages: tuple[Stage, ...]
    times: tuple[StageTime, ...]
    offloads: tuple[OffloadTime, ...]
    critical: int
    """The stage with the most work of its own."""
    bubble_s: Seconds
    sends_s: Seconds
    """Of its own sends beside computation; what it waits for those of others is part of the bubble."""

    @property
    def slowest(self) -> StageTime:
        """The critical stage, with what the pipeline found exposed of its messages."""
        return _with_sends(self.times[self.critical], self.sends_s)

    @property
    def passes_s(self) -> Seconds:
        """From the first forward to the last backward, without data parallelism when there is a pipeline."""
        if len(self.times) > 1:
            return self.times[self.critical].busy_s + self.bubble_s + self.sends_s
        (time,) = self.times
        own = (call for call in time.collectives if call.collective.phase != "optimizer")
        exposed_s = sum(call.exposed_s for call in own)
        return time.compute.forward_s + time.compute.backward_s + time.compute.recompute_s + exposed_s

    @property
    def step_s(self) -> Seconds:
        """Of the critical stage."""
        return own_s(self.times[self.critical], self.offloads[self.critical]) + self.bubble_s + self.sends_s

    @property
    def chunks(self) -> tuple[ChunkTimes, ...]:
        """All chunks in model order."""
        return chunks_in_order(self.stages, self.times)

    @property
    def send_s(self) -> Seconds:
        """One message between neighbours, where a schedule runs it beside computation."""
        return message_s(self.times)


def step_parts(plan: Plan) -> StepParts:
    """Time every stage of a plan and the waiting between them."""
    stages = pipeline_stages(model=plan.model, layout=plan.layout)
    clock = StageClock(plan)
    times = tuple(clock.stage_time(stage) for stage in stages)
    offloads = _offloads(plan, stages, clock)
    critical = max(range(len(stages)), key=lambda index: own_s(times[index], offloads[index]))
    bubble_s, sends_s = _waiting_s(plan, stages, times, critical)
    return StepParts(
        clock=clock,
        stages=stages,
        times=times,
        offloads=offloads,
        critical=critical,
        bubble_s=bubble_s,
        sends_s=sends_s,
    )


def _offloads(plan: Plan, stages: Sequence[Stage], clock: StageClock) -> tuple[OffloadTime, ...]:
    if plan.recipe.offload == "none" and not plan.recipe.activation_offload:
        return (OffloadTime(copies_s=0.0, update_s=0.0),) * len(stages)
    found: dict[tuple[object, ...], OffloadTime] = {}
    times = []
    for stage in stages:
        key = clock.stage_key(stage)
        if key not in found:
            context = StageContext(plan=plan, stage=stage)
            work = stage_work(context, clock.work_book(context), clock.timed_calls(context))
            found[key] = offload_time(context, work)
        times.append(found[key])
    return tuple(times)


def own_s(time: StageTime, offload: OffloadTime) -> Seconds:
    """Everything a stage does in a step, without waiting for other stages."""
    return time.busy_s + time.step_exposed_s + time.compute.optimizer_s + offload.total_s


def chunks_in_order(stages: Sequence[Stage], times: Sequence[StageTime]) -> tuple[ChunkTimes, ...]:
    """The chunks of all stages in model order."""
    chunks = {
        chunk.index: own
        for stage, time in zip(stages, times, strict=True)
        for chunk, own in zip(stage.chunks, time.chunks, strict=True)
    }
    return tuple(chunks[index] for index in range(len(chunks)))


def _waiting_s(
    plan: Plan, stages: Sequence[Stage], times: Sequence[StageTime], critical: int
) -> tuple[Seconds, Seconds]:
    """Time the critical stage waits for other stages, and for its own sends."""
    if len(times) == 1:
        return 0.0, 0.0
    busy_s = times[critical].busy_s
    if plan.layout.schedule not in CLOSED_SCHEDULES:
        found = pipeline_duration(plan, chunks=chunks_in_order(stages, times), send_s=message_s(times))
        if found is not None:
            own_sends_s = sum(call.total_s for call in times[critical].collectives if _is_send(call))
            sends_s = min(found.sends_s, own_sends_s, max(0.0, found.total_s - busy_s))
            return max(0.0, found.total_s - sends_s - busy_s), sends_s
    per_micro_batch = [_micro_batch(time, plan.num_microbatches) for time in times]
    whole_s = pipeline_time_s(stages=per_micro_batch, layout=plan.layout, num_microbatches=plan.num_microbatches)
    return max(0.0, whole_s - busy_s), 0.0


def message_s(times: Iterable[StageTime]) -> Seconds:
    """One message between neighbours; all of them carry the same activations."""
    sends = (time for stage in times for time in stage.collectives if _is_send(time))
    return next((time.total_s / time.collective.count for time in sends), 0.0)


def _is_send(time: CollectiveTime) -> bool:
    """Whether a record is a message that its schedule runs beside computation."""
    return time.collective.kind == "send_recv" and time.collective.axis == "pp" and time.collective.is_overlappable


def _with_sends(time: StageTime, sends_s: Seconds) -> StageTime:
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

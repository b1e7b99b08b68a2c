"""Everything a step prediction consists of, before it is summed up."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from shardwise.plan import Plan
from shardwise.predict.offload_time import NO_OFFLOAD, OffloadTime, offload_time
from shardwise.predict.pipeline_time import (
    PipelineDuration,
    pipeline_duration,
    pipeline_time_s,
)
from shardwise.predict.stage_time import CollectiveTime, StageClock, StageTime, is_data_parallel, waited_s
from shardwise.predict.stage_work import stage_work
from shardwise.simulate.pipeline_times import ChunkTimes
from shardwise.step.inventory import Collective
from shardwise.step.layer_placement import Stage, pipeline_stages
from shardwise.step.reduction_policy import needs_norm
from shardwise.step.stage_context import StageContext
from shardwise.units import Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class StepWaits:
    """When the stages of a step reach the points at which they wait for each other."""

    ends_s: tuple[Seconds, ...]
    """When each stage's last backward is done, without its reductions."""
    sends_s: Seconds
    """Exposed seconds of the critical stage's own messages, where they run beside computation."""
    gathers_s: Seconds
    """Seconds by which the last backward of all stages would come earlier if parameters were there at the beginning."""
    reductions_s: Seconds
    """Seconds by which the step would end earlier if gradients were reduced when backward ends."""
    updates_start_s: tuple[Seconds, ...]
    """When each stage may update. Where the step clips, this is a barrier: every stage has then reduced its gradients
    and knows the norm of all of them, and only then does any rank clip and update, whatever it did before."""
    step_s: Seconds
    """When the last stage has updated."""


@dataclass(frozen=True, kw_only=True)
class StepParts:
    """The stages of one step, the one that decides, and what it waits for."""

    clock: StageClock
    stages: tuple[Stage, ...]
    times: tuple[StageTime, ...]
    offloads: tuple[OffloadTime, ...]
    critical: int
    """The stage with the most work of its own."""
    waits: StepWaits

    @cached_property
    def slowest(self) -> StageTime:
        """The critical stage, with what the pipeline found exposed of its messages, gathers and reductions."""
        time = self.times[self.critical]
        if len(self.times) == 1:
            return time
        shares = (
            (is_send, self.waits.sends_s),
            (_is_gather, self.waits.gathers_s),
            (_is_reduction, self.waits.reductions_s),
        )
        for is_meant, exposed_s in shares:
            time = _with_exposed(time, is_meant, exposed_s)
        return time

    @property
    def bubble_s(self) -> Seconds:
        """Seconds the critical stage waits for others: in the pipeline, for their gradients, for their updates."""
        if len(self.times) == 1:
            return 0.0
        return max(0.0, self.waits.step_s - own_s(self.slowest, self.offloads[self.critical]))

    @property
    def step_s(self) -> Seconds:
        """Seconds from the first forward to the last update."""
        return self.waits.step_s

    @property
    def chunks(self) -> tuple[ChunkTimes, ...]:
        """All chunks in model order."""
        return chunks_in_order(self.stages, self.times)

    @property
    def send_s(self) -> Seconds:
        """Seconds of one message between neighbours, where a schedule runs it beside computation."""
        return message_s(self.times)


def step_parts(plan: Plan, *, is_free: Callable[[Collective], bool] | None = None) -> StepParts:
    """Time every stage of a plan and the waiting between them.

    Args:
        plan: what is timed.
        is_free: collectives that take no time, for the question what they add.
    """
    stages = pipeline_stages(model=plan.model, layout=plan.layout)
    clock = StageClock(plan, is_free=is_free)
    times = tuple(clock.stage_time(stage) for stage in stages)
    offloads = _offloads(plan, stages, clock)
    critical = max(range(len(stages)), key=lambda index: own_s(times[index], offloads[index]))
    return StepParts(
        clock=clock,
        stages=stages,
        times=times,
        offloads=offloads,
        critical=critical,
        waits=_waits(plan, stages, times, offloads, critical),
    )


def _offloads(plan: Plan, stages: Sequence[Stage], clock: StageClock) -> tuple[OffloadTime, ...]:
    if plan.recipe.offload == "none" and not plan.recipe.activation_offload:
        return (NO_OFFLOAD,) * len(stages)
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
    """Seconds of everything a stage does in a step, without waiting for other stages."""
    return time.busy_s + time.step_exposed_s + time.compute.optimizer_s + offload.total_s


def chunks_in_order(stages: Sequence[Stage], times: Sequence[StageTime]) -> tuple[ChunkTimes, ...]:
    """The chunks of all stages in model order."""
    chunks = {
        chunk.index: own
        for stage, time in zip(stages, times, strict=True)
        for chunk, own in zip(stage.chunks, time.chunks, strict=True)
    }
    return tuple(chunks[index] for index in range(len(chunks)))


def _waits(
    plan: Plan,
    stages: Sequence[Stage],
    times: Sequence[StageTime],
    offloads: Sequence[OffloadTime],
    critical: int,
) -> StepWaits:
    """The barriers of a step.

    A stage reduces its last gradients as soon as its own backward ends, beside what the stages before it still compute.
    """
    if len(times) == 1:
        return _alone(times[0], offloads[0])
    gathers_s = [time.gathers_s for time in times]
    found = pipeline_duration(
        plan, chunks=chunks_in_order(stages, times), send_s=message_s(times), gathers_s=gathers_s
    ) or _closed_duration(plan, times, gathers_s)
    reduced_s = [end_s + time.reductions_s for end_s, time in zip(found.ends_s, times, strict=True)]
    updates_s = [time.update_s + offload.total_s for time, offload in zip(times, offloads, strict=True)]
    ready_s = _update_starts_s(plan, times, reduced_s)
    earlier_s = _update_starts_s(plan, times, found.ends_s)
    step_s = max(map(sum, zip(ready_s, updates_s, strict=True)))
    without_s = max(map(sum, zip(earlier_s, updates_s, strict=True)))
    critical_time = times[critical]
    own_sends_s = sum(call.total_s for call in critical_time.collectives if is_send(call))
    # What waits of the three kinds is never more than the critical stage waits at all.
    at_once_s = own_s(critical_time, offloads[critical]) - critical_time.gathers_s - critical_time.reductions_s
    sends_s, exposed_gathers_s, reductions_s = _within(
        step_s - at_once_s, (min(found.sends_s, own_sends_s), found.gathers_s, step_s - without_s)
    )
    return StepWaits(
        ends_s=found.ends_s,
        sends_s=sends_s,
        gathers_s=exposed_gathers_s,
        reductions_s=reductions_s,
        updates_start_s=ready_s,
        step_s=step_s,
    )


def _update_starts_s(plan: Plan, times: Sequence[StageTime], reduced_s: Sequence[Seconds]) -> tuple[Seconds, ...]:
    """When each stage may update: all together behind the norm, or each on its own when nothing is clipped."""
    ready_s = tuple(end_s + time.before_norm_s for end_s, time in zip(reduced_s, times, strict=True))
    return (max(ready_s),) * len(times) if needs_norm(plan) else ready_s


def _within(slack_s: Seconds, waits_s: Sequence[Seconds]) -> Iterator[Seconds]:
    """Each wait in turn, cut to the slack that is left."""
    for wait_s in waits_s:
        taken_s = min(wait_s, max(0.0, slack_s))
        slack_s -= taken_s
        yield taken_s


def _alone(time: StageTime, offload: OffloadTime) -> StepWaits:
    """Waits of a single stage, which does everything in turn."""
    end_s = time.busy_s + time.gathers_s
    norm_known_s = end_s + time.reductions_s + time.before_norm_s
    return StepWaits(
        ends_s=(end_s,),
        sends_s=0.0,
        gathers_s=time.gathers_s,
        reductions_s=time.reductions_s,
        updates_start_s=(norm_known_s,),
        step_s=norm_known_s + time.update_s + offload.total_s,
    )


def _closed_duration(plan: Plan, times: Sequence[StageTime], gathers_s: Sequence[Seconds]) -> PipelineDuration:
    """Seconds of a pipeline without an order of passes, where nothing hides while it fills and drains."""
    per_micro_batch = [_micro_batch(time, plan.num_microbatches) for time in times]
    whole_s = pipeline_time_s(stages=per_micro_batch, layout=plan.layout, num_microbatches=plan.num_microbatches)
    longest_s = max(gathers_s)
    total_s = max(whole_s, *(time.busy_s for time in times)) + longest_s
    return PipelineDuration(total_s=total_s, sends_s=0.0, gathers_s=longest_s, ends_s=(total_s,) * len(times))


def message_s(times: Iterable[StageTime]) -> Seconds:
    """Seconds of one message between neighbours; all of them carry the same activations."""
    sends = (time for stage in times for time in stage.collectives if is_send(time))
    return next((time.total_s / time.collective.count for time in sends), 0.0)


def is_send(time: CollectiveTime) -> bool:
    """Whether a record is a message that its schedule runs beside computation."""
    return time.collective.kind == "send_recv" and time.collective.axis == "pp" and time.collective.is_overlappable


def _is_gather(time: CollectiveTime) -> bool:
    return is_data_parallel(time.collective, "forward")


def _is_reduction(time: CollectiveTime) -> bool:
    return is_data_parallel(time.collective, "backward")


def _with_exposed(time: StageTime, is_meant: Callable[[CollectiveTime], bool], exposed_s: Seconds) -> StageTime:
    """Divide exposed seconds among some collectives, by what each exposes alone or by its time, up to its time."""
    meant = [call for call in time.collectives if is_meant(call)]
    alone_s = sum(call.exposed_s for call in meant)
    total_s = sum(call.total_s for call in meant)
    if not total_s:
        return time

    def share(call: CollectiveTime) -> Seconds:
        part = call.exposed_s / alone_s if alone_s else call.total_s / total_s
        return min(call.total_s, part * exposed_s)

    collectives = tuple(replace(call, exposed_s=share(call)) if is_meant(call) else call for call in time.collectives)
    return replace(time, collectives=collectives)


def _micro_batch(time: StageTime, num_microbatches: int) -> ChunkTimes:
    """One micro-batch in all chunks of a stage, with what it waits for."""
    compute, waited = time.compute, waited_s(time.collectives)
    input_backward_s = compute.backward_s - compute.weight_backward_s + compute.recompute_s
    return ChunkTimes(
        forward_s=(compute.forward_s + waited["forward"]) / num_microbatches,
        input_backward_s=(input_backward_s + waited["backward"] + waited["recompute"]) / num_microbatches,
        weight_backward_s=compute.weight_backward_s / num_microbatches,
    )

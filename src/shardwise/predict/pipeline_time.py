"""Waiting time that a pipeline schedule adds to its stages, uneven ones included.

Schedules are simulated pass by pass, with what first forwards wait for; closed forms stand in for micro-batches that an
order cannot be written for. GPipe's equals its simulation.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from shardwise.engines.table import engine_profile
from shardwise.errors import LayoutError
from shardwise.formulas.pipeline_makespan import uneven_pipeline_s
from shardwise.layout import Layout
from shardwise.plan import Plan
from shardwise.schedules.make import settled
from shardwise.schedules.shape import ScheduleShape
from shardwise.schedules.table import SCHEDULE_KINDS
from shardwise.simulate.pipeline import run_pipeline
from shardwise.simulate.pipeline_graph import FirstPass
from shardwise.simulate.pipeline_times import ChunkTimes, PipelineTimes
from shardwise.step.held_stage import num_microbatches_per_round
from shardwise.units import Seconds

NO_SEND_S = 1e-12
"""A send that takes no time, in the same graph as one that does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineDuration:
    """Seconds from the beginning of a step to its last backward."""

    total_s: Seconds
    sends_s: Seconds
    """The part of ``total_s`` that would go if sends took no time, where a schedule runs them beside computation."""
    gathers_s: Seconds
    """The part of ``total_s`` that would go if parameters were there when the step begins."""
    ends_s: tuple[Seconds, ...]
    """When the last backward of each stage is done."""


def gathers_at_step_begin(plan: Plan) -> bool:
    """Whether every stage gathers its parameters when the step begins, and not when its first input arrives.

    Megatron-LM starts the gather of updated weights when it clears gradients (``core/optimizer/distrib_optimizer.py``
    ``step_with_ready_grads`` and ``zero_grad``, with ``--overlap-param-gather``). torch's schedules of several chunks
    a rank list ``UNSHARD`` of all units of a chunk ahead of its first forward (2.13, ``distributed/pipelining/
    schedules.py`` ``_add_unshard_reshard``). Its schedules of one chunk leave gathers to FSDP, which issues them behind
    the stream that waits for the input (``_fsdp_state.py`` ``_root_pre_forward``).
    """
    return engine_profile(plan.engine).sharding == "megatron" or not SCHEDULE_KINDS[plan.layout.schedule].is_plain


def unpaired_fraction(plan: Plan) -> float:
    """Share of the forwards of DualPipe, or of DualPipeV, that have no backward beside them, in the mean over ranks.

    A rank ``r`` from its end of ``p`` runs ``2 (p - 1 - r) + 2 (r + 1) + (p - 1 - r)`` forwards before its first pair,
    and the rank at the turn one more; a micro-batch passes twice through a rank of DualPipeV.
    """
    copies = plan.layout.model_copies
    ranks = plan.layout.pp // copies
    return (2.5 * ranks - 0.5 + 1 / ranks) * copies / (2 * plan.num_microbatches)


def schedule_shape(plan: Plan) -> ScheduleShape | None:
    """The schedule of a plan, ``None`` where no order can be written for its micro-batches.

    Megatron interleaves in rounds of pp micro-batches unless told otherwise, torch in rounds as even as possible.
    """
    layout = plan.layout
    asked = ScheduleShape(
        name=layout.schedule,
        pp=layout.pp,
        vpp=layout.vpp,
        num_microbatches=plan.num_microbatches,
        num_microbatches_per_round=num_microbatches_per_round(plan),
    )
    try:
        return settled(asked)
    except LayoutError:
        return None


def pipeline_duration(
    plan: Plan, *, chunks: Sequence[ChunkTimes], send_s: Seconds, gathers_s: Sequence[Seconds] = ()
) -> PipelineDuration | None:
    """Simulate a schedule; ``None`` where its order cannot be written.

    Args:
        plan: the plan whose schedule is simulated.
        chunks: times of the chunks of all stages, in model order.
        send_s: seconds of one message between neighbours, beside computation.
        gathers_s: seconds by which gathers that begin with each stage's first pass prolong it.
    """
    shape = schedule_shape(plan)
    if shape is None:
        return None
    times = pipeline_times(plan, chunks=chunks, send_s=send_s, gathers_s=gathers_s)
    run = run_pipeline(shape, times)
    total_s = run.makespan_s
    without_gathers_s = without_sends_s = total_s
    if times.first_passes:
        without_gathers_s = run_pipeline(shape, replace(times, first_passes=())).makespan_s
    if send_s:
        without_sends_s = run_pipeline(shape, replace(times, sends_s=(NO_SEND_S,) * len(times.sends_s))).makespan_s
    return PipelineDuration(
        total_s=total_s,
        sends_s=max(0.0, total_s - without_sends_s),
        gathers_s=max(0.0, total_s - without_gathers_s),
        ends_s=tuple(rank.last_end_s for rank in run.ranks),
    )


def pipeline_times(
    plan: Plan, *, chunks: Sequence[ChunkTimes], send_s: Seconds, gathers_s: Sequence[Seconds]
) -> PipelineTimes:
    """Times from which a schedule is simulated; a stage's gathers delay the first of its chunks.

    DualPipe feeds micro-batches from both ends: the second half of its ranks begin with their second chunk.
    """
    layout = plan.layout
    first_passes: list[FirstPass] = []
    if any(gathers_s):
        first_passes = [FirstPass()] * len(chunks)
        for stage, seconds in enumerate(gathers_s):
            at_begin = gathers_at_step_begin(plan)
            is_mirrored = layout.model_copies > 1 and stage >= layout.pp // 2
            chunk = len(chunks) - 1 - stage if is_mirrored else stage
            first_passes[chunk] = FirstPass(not_before_s=seconds) if at_begin else FirstPass(longer_s=seconds)
    return PipelineTimes(
        chunks=tuple(chunks),
        sends_s=(send_s,) * (len(chunks) - 1) if send_s else (),
        first_passes=tuple(first_passes),
    )


def pipeline_time_s(*, stages: Sequence[ChunkTimes], layout: Layout, num_microbatches: int) -> Seconds:
    """Time from the first forward to the last backward of a step of ``num_microbatches`` in each stage.

    GPipe is two flow shops, one after the other. Otherwise the slowest stage works through all micro-batches; the
    others' single micro-batches fill and drain the pipeline around it. Interleaving divides the filling by the chunks
    of a rank, ZB-H1 fills it with weight gradients, and the schedules with no bubble still start one chunk's forward
    after the other.

    Source: as :mod:`shardwise.formulas.pipeline_makespan`, generalised to unequal stages by summing over them instead
        of multiplying by ``p - 1``.
    Assumes: free buffers; the optimizer waits for all stages.
    """
    totals = [stage.total_s for stage in stages]
    slowest = max(totals)
    kind = SCHEDULE_KINDS[layout.schedule]
    if kind.runs_forwards_first:
        return sum(
            uneven_pipeline_s(max_stage_s=max(phase), sum_stages_s=sum(phase), num_microbatches=num_microbatches)
            for phase in (
                [stage.forward_s for stage in stages],
                [stage.backward_s for stage in stages],
            )
        )
    if kind.is_plain:
        return uneven_pipeline_s(max_stage_s=slowest, sum_stages_s=sum(totals), num_microbatches=num_microbatches)
    return num_microbatches * slowest + _fill_s(stages, layout, skipped=totals.index(slowest))


def _fill_s(stages: Sequence[ChunkTimes], layout: Layout, *, skipped: int) -> Seconds:
    """Seconds one micro-batch spends on all stages but the slowest, as far as the schedule leaves them idle."""
    others = [stage for index, stage in enumerate(stages) if index != skipped]
    kind = SCHEDULE_KINDS[layout.schedule]
    if not kind.splits_backward:
        return sum(stage.total_s for stage in others) / layout.vpp
    if kind.filling == "weight gradients":
        return sum(
            max(stage.forward_s, stage.forward_s + stage.input_backward_s - stage.weight_backward_s) for stage in others
        )
    return sum(stage.forward_s for stage in others) / (kind.num_chunks or layout.vpp)

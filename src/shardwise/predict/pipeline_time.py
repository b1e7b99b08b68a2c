"""Waiting time that a pipeline schedule adds to its stages, uneven ones included.

GPipe has a closed form that equals its simulation. Every other schedule is simulated pass by pass, and has a closed
form for micro-batches that its order cannot be written for.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from shardwise.errors import LayoutError
from shardwise.formulas.pipeline_bubbles import uneven_pipeline_s
from shardwise.layout import Layout
from shardwise.plan import Plan
from shardwise.simulate.pipeline import run_pipeline
from shardwise.simulate.pipeline_times import ChunkTimes, PipelineTimes
from shardwise.simulate.schedules.actions import ScheduleShape
from shardwise.simulate.schedules.make import settled
from shardwise.units import Seconds

CLOSED_SCHEDULES = ("gpipe",)
NO_SEND_S = 1e-12
"""A send that takes no time, in the same graph as one that does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatchTimes:
    """Seconds of one micro-batch on one stage, all its chunks together."""

    forward_s: Seconds
    """With the communication it waits for."""
    input_backward_s: Seconds
    """Recomputation and input gradient, with the communication they wait for."""
    weight_backward_s: Seconds

    @property
    def total_s(self) -> Seconds:
        """The whole micro-batch."""
        return self.forward_s + self.input_backward_s + self.weight_backward_s


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineDuration:
    """From the first forward to the last backward of a step."""

    total_s: Seconds
    sends_s: Seconds
    """The part of it that would go if sends took no time, where a schedule runs them beside computation."""


def schedule_shape(plan: Plan) -> ScheduleShape | None:
    """The schedule of a plan, ``None`` where no order can be written for its micro-batches.

    Megatron interleaves in rounds of pp micro-batches, torch in rounds as even as possible.
    """
    layout = plan.layout
    asked = ScheduleShape(
        name=layout.schedule,
        pp=layout.pp,
        vpp=layout.vpp,
        num_microbatches=plan.num_microbatches,
        num_microbatches_per_round=layout.pp if plan.engine == "megatron" else None,
    )
    try:
        return settled(asked)
    except LayoutError:
        return None


def pipeline_duration(plan: Plan, *, chunks: Sequence[ChunkTimes], send_s: Seconds) -> PipelineDuration | None:
    """Simulate a schedule that is not in closed form; ``None`` where its order cannot be written."""
    shape = schedule_shape(plan)
    if shape is None:
        return None
    num_sends = len(chunks) - 1
    times = PipelineTimes(chunks=tuple(chunks), sends_s=(send_s,) * num_sends)
    total_s = run_pipeline(shape, times).makespan_s
    if not send_s:
        return PipelineDuration(total_s=total_s, sends_s=0.0)
    free = PipelineTimes(chunks=tuple(chunks), sends_s=(NO_SEND_S,) * num_sends)
    return PipelineDuration(total_s=total_s, sends_s=max(0.0, total_s - run_pipeline(shape, free).makespan_s))


def pipeline_time_s(*, stages: Sequence[MicroBatchTimes], layout: Layout, num_microbatches: int) -> Seconds:
    """Time from the first forward to the last backward of a step.

    GPipe is two flow shops, one after the other. Otherwise the slowest stage works through all micro-batches; the
    others' single micro-batches fill and drain the pipeline around it. Interleaving divides the filling by the chunks
    of a rank, ZB-H1 fills it with weight gradients, and the schedules with no bubble still start one chunk's forward
    after the other.

    Source: as :mod:`shardwise.formulas.pipeline_bubbles`, generalised to unequal stages by summing over them instead
        of multiplying by ``p - 1``.
    Assumes: free buffers; the optimizer waits for all stages.
    """
    totals = [stage.total_s for stage in stages]
    slowest = max(totals)
    if layout.schedule == "gpipe":
        return sum(
            uneven_pipeline_s(max_stage_s=max(phase), sum_stages_s=sum(phase), num_microbatches=num_microbatches)
            for phase in (
                [stage.forward_s for stage in stages],
                [stage.input_backward_s + stage.weight_backward_s for stage in stages],
            )
        )
    if layout.schedule == "1f1b":
        return uneven_pipeline_s(max_stage_s=slowest, sum_stages_s=sum(totals), num_microbatches=num_microbatches)
    return num_microbatches * slowest + _fill_s(stages, layout, skipped=totals.index(slowest))


def _fill_s(stages: Sequence[MicroBatchTimes], layout: Layout, *, skipped: int) -> Seconds:
    """Seconds one micro-batch spends on all stages but the slowest, as far as the schedule leaves them idle."""
    others = [stage for index, stage in enumerate(stages) if index != skipped]
    if layout.schedule == "interleaved":
        return sum(stage.total_s for stage in others) / layout.vpp
    if layout.schedule == "zb-h1":
        return sum(
            max(stage.forward_s, stage.forward_s + stage.input_backward_s - stage.weight_backward_s) for stage in others
        )
    chunks = 1 if layout.schedule == "zb-h2" else 2
    return sum(stage.forward_s for stage in others) / chunks

"""Waiting time that a pipeline schedule adds to its stages, uneven ones included."""

from collections.abc import Sequence
from dataclasses import dataclass

from shardwise.formulas.pipeline_bubbles import uneven_pipeline_s
from shardwise.layout import Layout
from shardwise.units import Seconds


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


def pipeline_time_s(*, stages: Sequence[MicroBatchTimes], layout: Layout, num_microbatches: int) -> Seconds:
    """Time from the first forward to the last backward of a step.

    The slowest stage works through all micro-batches; the others' single micro-batches fill and drain the pipeline
    around it. Interleaving divides the filling by the chunks of a rank, ZB-H1 fills it with weight gradients, and the
    schedules with no bubble still start one chunk's forward after the other.

    Source: as :mod:`shardwise.formulas.pipeline_bubbles`, generalised to unequal stages by summing over them instead
        of multiplying by ``p - 1``.
    Assumes: free buffers; the optimizer waits for all stages.
    """
    totals = [stage.total_s for stage in stages]
    slowest = max(totals)
    if layout.schedule in ("gpipe", "1f1b"):
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

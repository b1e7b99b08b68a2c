"""Which blocks and ends a pipeline stage holds, and how many micro-batches wait there.

All of it follows from a few numbers and words, whatever the sizes of tensors. A search asks about it once for every
pipeline that occurs.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from shardwise.columns import negated
from shardwise.engines.profile import PartialRecompute
from shardwise.engines.table import ENGINES, engine_profile
from shardwise.plan import Plan
from shardwise.schedules.table import SCHEDULE_KINDS, Schedule
from shardwise.step.in_flight import in_flight_micro_batches, waiting_sets, waits_for_weights
from shardwise.step.layer_placement import Stage
from shardwise.step.native_engine import is_native_engine
from shardwise.step.recomputed_blocks import HeldRun, held_runs, recomputed_positions
from shardwise.step.timeline import Timeline, stage_timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """The facts of a plan that decide which blocks a stage recomputes and how many micro-batches it holds."""

    pp: int
    vpp: int
    schedule: Schedule
    num_microbatches: int
    num_per_round: int | None
    """Micro-batches that an interleaved stage runs before its next chunk; ``None``: rounds as even as possible."""
    recomputes: bool
    recompute_layers: int | None
    """Recomputed blocks of each stage; ``None`` for all of them."""
    partial_recompute: PartialRecompute
    is_native_engine: bool


def num_microbatches_per_round(plan: Plan) -> int | None:
    """Micro-batches of one round of an interleaved schedule: the plan's own number, pp for Megatron, torch's share."""
    in_rounds_of_pp = ENGINES[plan.engine].interleaves_in_rounds_of_pp
    return plan.layout.num_microbatches_per_round or (plan.layout.pp if in_rounds_of_pp else None)


def pipeline_of(plan: Plan) -> Pipeline:
    """The pipeline of a plan."""
    layout, recipe = plan.layout, plan.recipe
    return Pipeline(
        pp=layout.pp,
        vpp=layout.vpp,
        schedule=layout.schedule,
        num_microbatches=plan.num_microbatches,
        num_per_round=num_microbatches_per_round(plan),
        recomputes=negated(recipe.recompute == "none"),
        recompute_layers=recipe.recompute_layers,
        partial_recompute=engine_profile(plan.engine).partial_recompute,
        is_native_engine=is_native_engine(plan),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldStage:
    """The blocks and ends of one stage, and how many micro-batches wait there."""

    index: int
    num_layers: int
    num_chunks: int
    has_embedding: bool
    has_head: bool
    runs: tuple[HeldRun, ...]
    timeline: Timeline
    """The moments of the step."""
    in_flight_micro_batches: float
    """Activation sets of the whole stage alive at the worst moment."""
    waits_for_weights: bool
    """Whether gradients of weights wait for the other half of backward."""
    num_waiting_sets: float
    """Micro-batches of the whole stage that wait for gradients of weights while another one runs."""
    forwards_come_first: bool
    """Whether our trainer's stage has no gradients yet when its last forward pass ends: all of them come first.

    Stages of several chunks are not: gradients of one chunk meet forward passes of another."""


def held_stage(stage: Stage, pipeline: Pipeline) -> HeldStage:
    """Work out what a stage of a pipeline holds."""
    runs = _runs(stage, pipeline)
    in_flight = _in_flight(stage.index, pipeline)
    comes_first = _forwards_come_first(stage.index, pipeline)
    waits, sets = _waiting(stage.index, pipeline)
    return HeldStage(
        index=stage.index,
        num_layers=stage.num_layers,
        num_chunks=len(stage.chunks),
        has_embedding=stage.has_embedding,
        has_head=stage.has_head,
        runs=runs,
        timeline=stage_timeline(
            tuple(run.count for run in runs), has_head=stage.has_head, forwards_come_first=comes_first
        ),
        in_flight_micro_batches=in_flight,
        waits_for_weights=waits,
        num_waiting_sets=sets,
        forwards_come_first=comes_first,
    )


def by_content(stages: Iterable[Stage]) -> tuple[tuple[Stage, ...], ...]:
    """The stages of a pipeline, grouped by equal blocks."""
    alike: dict[tuple[object, ...], list[Stage]] = {}
    for stage in stages:
        alike.setdefault(content_key(stage), []).append(stage)
    return tuple(map(tuple, alike.values()))


def fullest_stages(alike: Iterable[Sequence[Stage]], pipeline: Pipeline) -> tuple[Stage, ...]:
    """A few stages of a pipeline in order, the fullest among them.

    Stages that hold equal blocks differ in the micro-batches whose activations or gradients they keep: the one that
    keeps most needs most. That is the first of them, since no stage keeps more activations than the stages before it.
    Where gradients of weights wait, all keep as many activations, and the last one keeps most gradients.

    Args:
        alike: stages that hold equal blocks (:func:`by_content`).
        pipeline: the pipeline that they belong to.
    """
    found: list[Stage] = []
    for first, *others in alike:
        if others and _waiting(others[-1].index, pipeline)[0]:
            found.append(others[-1])
            continue
        found.append(first)
        if _forwards_come_first(first.index, pipeline):
            found += [stage for stage in others if not _forwards_come_first(stage.index, pipeline)][:1]
    return tuple(sorted(found, key=lambda stage: stage.index))


def content_key(stage: Stage) -> tuple[object, ...]:
    """A key that stages with equal blocks share, but for the first: it runs both halves of a split backward as one."""
    return (
        stage.index == 0,
        *(
            (chunk.has_embedding, chunk.has_head, tuple((id(layer), count) for layer, count in chunk.layer_runs))
            for chunk in stage.chunks
        ),
    )


def _runs(stage: Stage, pipeline: Pipeline) -> tuple[HeldRun, ...]:
    if not pipeline.recomputes or pipeline.recompute_layers is None:
        return tuple(
            HeldRun(layer=layer, count=count, num_recomputed=count * pipeline.recomputes)
            for layer, count in stage.layer_runs
        )
    again = recomputed_positions(
        chunk_layers=[chunk.num_layers for chunk in stage.chunks],
        num_recomputed=pipeline.recompute_layers,
        order=pipeline.partial_recompute,
    )
    return tuple(held_runs(stage.layer_runs, again))


def _in_flight(index: int, pipeline: Pipeline) -> float:
    return in_flight_micro_batches(
        schedule=pipeline.schedule,
        stage=index,
        pp=pipeline.pp,
        vpp=pipeline.vpp,
        num_microbatches=pipeline.num_microbatches,
        num_per_round=pipeline.num_per_round,
    )


def _forwards_come_first(index: int, pipeline: Pipeline) -> bool:
    is_plain = pipeline.pp > 1 and SCHEDULE_KINDS[pipeline.schedule].is_plain
    if not (pipeline.is_native_engine and is_plain and pipeline.num_microbatches > 1):
        return False
    return pipeline.num_microbatches <= _in_flight(index, pipeline)


def _waiting(index: int, pipeline: Pipeline) -> tuple[bool, float]:
    """Whether gradients of weights wait on a stage of our trainer, and how many micro-batches' gradients do."""
    if not pipeline.is_native_engine:
        return False, 0.0
    sets = waiting_sets(
        pp=pipeline.pp,
        vpp=pipeline.vpp,
        schedule=pipeline.schedule,
        stage=index,
        num_microbatches=pipeline.num_microbatches,
    )
    return waits_for_weights(pp=pipeline.pp, schedule=pipeline.schedule, stage=index), sets

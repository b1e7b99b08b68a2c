"""Every rank kind of a job, traced: few blocks and few micro-batches, extended to all of them."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from shardwise.layout import Layout
from shardwise.schedules.table import SCHEDULE_KINDS
from shardwise.step.native_engine import uses_ddp
from shardwise.train.job import Job, uses_transformers
from shardwise.train.stages import chunk_indices
from shardwise.train.tracing.recorder import Call
from shardwise.train.tracing.run_rank import trace_rank
from shardwise.train.tracing.summary import StepSummary, extended, summarise
from shardwise.train.tracing.user_module import ModuleFactory
from shardwise.train.tracing.whereabouts import Place

PLAIN_MICRO_BATCHES = 3
"""First, middle and last: all others are like the middle one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTrace:
    """The ranks of one pipeline stage."""

    stage: int
    summary: StepSummary
    num_blocks: int
    num_traced_blocks: int
    num_traced_microbatches: int


def trace_job(job: Job, factory: ModuleFactory | None = None) -> tuple[StageTrace, ...]:
    """The stages whose ranks differ: the first, the second, the last, and any with more blocks than the second."""
    if factory is not None:
        return (_trace_given(job, factory),)
    return tuple(trace_stage(job, stage) for stage in watched_stages(job))


def watched_stages(job: Job) -> tuple[int, ...]:
    """Stages to trace; the second holds most micro-batches of those in the middle."""
    pp = job.layout.pp
    if pp == 1:
        return (0,)
    sizes = {stage: sum(_chunk_sizes(job, stage)) for stage in range(pp)}
    fuller = {stage for stage in range(1, pp - 1) if sizes[stage] > sizes[1]}
    return tuple(sorted({0, min(1, pp - 1), pp - 1} | set(sorted(fuller)[:1])))


def trace_stage(job: Job, stage: int) -> StageTrace:
    """One rank of a stage, from two shallow models or, where blocks differ, from the whole one."""
    sizes = _chunk_sizes(job, stage)
    short = with_microbatches(job)
    least = 2 * (1 + job.layout.prefetch_units)
    if len(set(sizes)) > 1 or sizes[0] <= least + 1 or not _has_equal_blocks(job, sizes[0]):
        summary = _summary(short, job, stage, sizes)
        num_traced = sum(sizes)
    else:
        shallow, deep = (
            _summary(_with_depth(short, depth), job, stage, (depth,) * len(sizes)) for depth in (least, least + 1)
        )
        summary = extended(shallow, deep, added=sizes[0] - least)
        num_traced = (least + 1) * len(sizes)
    return StageTrace(
        stage=stage,
        summary=summary,
        num_blocks=sum(sizes),
        num_traced_blocks=num_traced,
        num_traced_microbatches=short.num_microbatches,
    )


def _trace_given(job: Job, factory: ModuleFactory) -> StageTrace:
    """The trace of a module at its own depth, which is not ours to change."""
    short = with_microbatches(job)
    num_waiting = job.num_microbatches - short.num_microbatches
    traced = trace_rank(short, rank=0, factory=factory, num_waiting=num_waiting)
    summary = summarise(
        traced,
        chunk_sizes=(traced.num_blocks,),
        repeats=_repeats(short.num_microbatches, job.num_microbatches),
        axis=axis_namer(job.layout, 0),
    )
    return StageTrace(
        stage=0,
        summary=summary,
        num_blocks=traced.num_blocks,
        num_traced_blocks=traced.num_blocks,
        num_traced_microbatches=short.num_microbatches,
    )


def with_microbatches(job: Job) -> Job:
    """The job with as few micro-batches as show everything that a step of it does."""
    pp, count = job.layout.pp, job.num_microbatches
    if pp == 1:
        return replace(job, num_microbatches=min(count, PLAIN_MICRO_BATCHES))
    if SCHEDULE_KINDS[job.layout.schedule].runs_forwards_first or count <= 3 * pp:
        return job
    return replace(job, num_microbatches=2 * pp + count % pp)


def _summary(short: Job, job: Job, stage: int, sizes: tuple[int, ...]) -> StepSummary:
    rank = stage * (job.layout.world_size // job.layout.pp)
    return summarise(
        trace_rank(short, rank=rank, num_waiting=job.num_microbatches - short.num_microbatches),
        chunk_sizes=sizes,
        repeats=_repeats(short.num_microbatches, job.num_microbatches),
        axis=axis_namer(job.layout, rank),
    )


def _repeats(traced: int, whole: int) -> Callable[[Place, str], float]:
    """Messages of a pipeline are as many as micro-batches; everything else differs in the first and the last one."""

    def repeats(place: Place, kind: str) -> float:
        if kind == "send_recv":
            return whole / traced
        if place.phase == "optimizer" or traced == whole or place.micro_batch in (0, traced - 1):
            return 1.0
        return (whole - 2) / (traced - 2)

    return repeats


def _has_equal_blocks(job: Job, num_blocks: int) -> bool:
    """Whether blocks are alike: not where some are recomputed, nor where DDP's buckets span blocks."""
    recipe = job.recipe
    is_partly_recomputed = recipe.recompute != "none" and (recipe.recompute_layers or num_blocks) < num_blocks
    has_buckets = uses_ddp(layout=job.layout, recipe=recipe) and job.layout.data_parallel_size > 1
    return not (is_partly_recomputed or has_buckets or uses_transformers(job))


def _with_depth(job: Job, depth: int) -> Job:
    chunks = tuple(depth for _ in job.chunk_layers)
    fields = {**job.model_config, "num_hidden_layers": depth * max(1, len(chunks))}
    return replace(job, chunk_layers=chunks, model_config_json=json.dumps(fields))


def _chunk_sizes(job: Job, stage: int) -> tuple[int, ...]:
    if job.layout.pp == 1:
        return (int(str(job.model_config["num_hidden_layers"])),)
    return tuple(job.chunk_layers[index] for index in chunk_indices(job.layout, stage))


def axis_namer(layout: Layout, rank: int) -> Callable[[Call], str]:
    """Names the axis of a call by its ranks; where two axes have equal ranks, by what asks for it."""
    groups = dict(_groups(layout, rank))

    def name(call: Call) -> str:
        if call.kind == "send_recv":
            return "pp"
        order = STATE_AXES if call.unit else MODEL_AXES
        found = next((axis for axis in order if groups.get(axis) == call.ranks), None)
        if found is not None:
            return NAMES.get(found, found)
        return "dp_shard" if call.unit else "world"

    return name


STATE_AXES = ("dp_shard", "expert_shards", "dp_replicate", "copies", "tp", "cp")
MODEL_AXES = ("tp", "cp", "ep", "copies", "dp_shard", "dp_replicate", "pp")
NAMES = {"expert_shards": "dp_shard", "copies": "dp_shard"}


def _groups(layout: Layout, rank: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Ranks of the axes that ``rank`` belongs to: tp fastest, then cp, dp_shard, dp_replicate and pp."""
    yield "tp", _strided(rank, 1, layout.tp)
    yield "cp", _strided(rank, layout.tp, layout.cp)
    shards = layout.cp * layout.dp_shard
    yield "dp_shard", _strided(rank, layout.tp, shards)
    yield "dp_replicate", _strided(rank, layout.tp * shards, layout.dp_replicate)
    yield "copies", _strided(rank, layout.tp, shards * layout.dp_replicate)
    yield "ep", _strided(rank, 1, layout.ep)
    yield "expert_shards", _strided(rank, layout.ep, max(1, shards * layout.tp // layout.ep))
    yield "pp", _strided(rank, layout.world_size // layout.pp, layout.pp)


def _strided(rank: int, stride: int, size: int) -> tuple[int, ...]:
    first = rank - rank // stride % size * stride
    return tuple(first + index * stride for index in range(size))

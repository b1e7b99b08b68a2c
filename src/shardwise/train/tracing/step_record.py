"""The trace of a job as a record: per stage and phase what is held, every collective, FLOP per operator."""

from collections.abc import Iterator

import torch

from shardwise.ledger import MEMORY_COMPONENTS, PHASES, MemoryComponent, Phase
from shardwise.measure.traced_step import TracedCollective, TracedMemory, TracedOperator, TracedStage, TracedStep
from shardwise.step.buffers import LIBRARY_WORKSPACE_BYTES
from shardwise.train.job import Job
from shardwise.train.tracing.summary import COMPONENT_INDEX, PlaceKey, StepSummary, Vector, peak
from shardwise.train.tracing.trace_job import StageTrace, trace_job
from shardwise.train.tracing.user_module import ModuleFactory

COMPILE_NOTE = "compiled blocks and loss are traced as they run without compilation, which saves and makes more tensors"
FP32_NOTE = "grouped heads in fp32 have no fused attention kernel: their scores are stored whole"


def traced_step(job: Job, factory: ModuleFactory | None = None) -> TracedStep:
    """Every rank kind of a job.

    Raises:
        ShardwiseError: the layout cannot be run, or a user's module cannot be traced.
    """
    stages = tuple(_stage(job, traced) for traced in trace_job(job, factory))
    return TracedStep(stages=stages, torch_version=torch.__version__, notes=tuple(_notes(job)))


def _notes(job: Job) -> Iterator[str]:
    config = job.model_config
    if job.recipe.compile:
        yield COMPILE_NOTE
    is_grouped = config.get("num_key_value_heads", config.get("num_attention_heads")) != config.get(
        "num_attention_heads"
    )
    if job.recipe.precision == "fp32" and is_grouped and job.device != "cpu":
        yield FP32_NOTE


def _stage(job: Job, traced: StageTrace) -> TracedStage:
    present = [phase for phase in PHASES if any(key.phase == phase for key in traced.summary.places)]
    return TracedStage(
        stage=traced.stage,
        num_blocks=traced.num_blocks,
        num_traced_blocks=traced.num_traced_blocks,
        num_microbatches=job.num_microbatches,
        num_traced_microbatches=traced.num_traced_microbatches,
        phases=tuple(_memory(job, traced, phase) for phase in present),
        collectives=tuple(_collectives(traced.summary)),
        operators=tuple(
            TracedOperator(operator=key.operator, phase=key.phase, flop=flop)
            for key, flop in sorted(traced.summary.flop.items(), key=lambda item: -item[1])
        ),
    )


def _memory(job: Job, traced: StageTrace, phase: Phase) -> TracedMemory:
    key, vector = peak(traced.summary, (phase,))
    return TracedMemory(
        phase=phase,
        place=_place(key, traced.num_blocks),
        components=_components(vector, workspace_bytes=0 if job.device == "cpu" else LIBRARY_WORKSPACE_BYTES),
    )


def _components(vector: Vector, *, workspace_bytes: int) -> tuple[tuple[MemoryComponent, int], ...]:
    """Bytes by component, with the workspaces that cuBLAS takes from torch's allocator and no tensor shows."""
    held = list(vector)
    held[COMPONENT_INDEX["temporaries"]] += workspace_bytes
    return tuple((name, num_bytes) for name, num_bytes in zip(MEMORY_COMPONENTS, held, strict=True) if num_bytes)


def _place(key: PlaceKey, num_blocks: int) -> str:
    where = f"micro-batch {key.micro_batch + 1}"
    if key.phase in ("optimizer", "load"):
        return "optimizer step" if key.phase == "optimizer" else "load"
    if key.chunk < 0:
        return f"{where}, {'norm, head and loss' if key.position else 'embedding'}"
    ordinal = key.position + 1 if key.position >= 0 else num_blocks + key.position + 1
    return f"{where}, block {ordinal} of {num_blocks}"


def _collectives(summary: StepSummary) -> Iterator[TracedCollective]:
    for key, count in sorted(summary.calls.items(), key=lambda item: -item[0].num_bytes * item[1]):
        yield TracedCollective(
            kind=key.kind,
            axis=key.axis,
            group_size=key.group_size,
            num_bytes=key.num_bytes,
            count=round(count),
            phase=key.phase,
            unit=key.unit,
        )

"""A traced step as a measurement record, ``shardwise.measurement/1``: what a run would measure, as far as it is known.

``memory`` is of the worst rank and reads like a run's, so that ``shardwise reconcile`` takes it; the rest is ``trace``.
"""

from dataclasses import asdict

from shardwise.measure.traced_step import TracedMemory, TracedStage, TracedStep
from shardwise.plan import Plan

MEASUREMENT_SCHEMA = "shardwise.measurement/1"
TRACED_BY = "shardwise trace"


def traced_step_object(plan: Plan, traced: TracedStep, *, module: str | None) -> dict[str, object]:
    """The record."""
    peak = traced.worst.peak
    return {
        "schema": MEASUREMENT_SCHEMA,
        "measured_by": TRACED_BY,
        "memory": {
            "peak_allocated_bytes": peak.allocated_bytes,
            "peak_reserved_bytes": None,
            "components_bytes": dict(peak.components),
        },
        "time": {"step_s": None, "num_steps_measured": 0, "first_step_s": None},
        "environment": {"device": "none", "world_size": plan.layout.world_size, "torch": traced.torch_version},
        "trace": {
            "module": module,
            "notes": list(traced.notes),
            "stages": [_stage_object(stage) for stage in traced.stages],
        },
    }


def _stage_object(stage: TracedStage) -> dict[str, object]:
    return {
        "stage": stage.stage,
        "num_blocks": stage.num_blocks,
        "num_traced_blocks": stage.num_traced_blocks,
        "num_microbatches": stage.num_microbatches,
        "num_traced_microbatches": stage.num_traced_microbatches,
        "peak_phase": stage.peak.phase,
        "phases": [_memory_object(memory) for memory in stage.phases],
        "collectives": [asdict(call) for call in stage.collectives],
        "flop": stage.flop,
        "operators": [asdict(operator) for operator in stage.operators],
    }


def _memory_object(memory: TracedMemory) -> dict[str, object]:
    return {
        "phase": memory.phase,
        "place": memory.place,
        "allocated_bytes": memory.allocated_bytes,
        "components_bytes": dict(memory.components),
    }

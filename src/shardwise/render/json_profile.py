"""The JSON answers about what was recorded or traced: profiles of traces, memory histories and traced steps."""

from collections.abc import Sequence

from shardwise.measure import memory_origin, step_split
from shardwise.measure.memory_profile import MemoryProfile
from shardwise.measure.profile_records import TraceProfile
from shardwise.measure.traced_step import TracedStep
from shardwise.plan import Plan
from shardwise.reconcile.planned_profile import PlannedProfile
from shardwise.render.json_records import json_object, json_value

__all__ = ["memory_profile_object", "profile_object", "traced_step_object"]


def profile_object(profile: TraceProfile, planned: PlannedProfile | None = None) -> dict[str, object]:
    """``shardwise.profile/1``: times are seconds of one mean step. Without a plan nothing of it is predicted."""
    turned = planned.knobs if planned else tuple(None for _ in profile.findings)
    return {
        "schema": "shardwise.profile/1",
        **json_object(profile),
        "findings": [
            {**json_object(finding), "knobs": json_value(knobs)}
            for finding, knobs in zip(profile.findings, turned, strict=True)
        ],
        "utilisation": json_value(planned.utilisations) if planned else None,
        "warnings": [*profile.warnings, *(planned.notes if planned else ())],
        "definitions": dict(step_split.DEFINITIONS),
    }


def memory_profile_object(profiles: Sequence[MemoryProfile]) -> dict[str, object]:
    """``shardwise.memory_profile/1``; the samples of the picture are left out."""
    return {
        "schema": "shardwise.memory_profile/1",
        "devices": [json_object(profile) for profile in profiles],
        "definitions": dict(memory_origin.DEFINITIONS),
    }


def traced_step_object(plan: Plan, traced: TracedStep, *, module: str | None) -> dict[str, object]:
    """``shardwise.measurement/1``: what a run would measure, as far as it is known.

    ``memory`` is of the worst rank and reads like a run's, so that ``shardwise reconcile`` takes it. The rest is
    ``trace``.
    """
    peak = traced.worst.peak
    return {
        "schema": "shardwise.measurement/1",
        "measured_by": "shardwise trace",
        "memory": {
            "peak_allocated_bytes": peak.allocated_bytes,
            "peak_reserved_bytes": None,
            "components_bytes": dict(peak.components),
        },
        "time": {"step_s": None, "num_steps_measured": 0, "first_step_s": None},
        "environment": {"device": "none", "world_size": plan.layout.world_size, "torch": traced.torch_version},
        "trace": {"module": module, **json_object(traced, "notes stages")},
    }

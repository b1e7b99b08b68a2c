"""A profile beside the plan that was running: what its knobs would gain, and the utilisation of its step."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from shardwise.explain.knobs import TurnedKnobs, turn_knobs
from shardwise.measure.profile_records import TraceProfile
from shardwise.plan import Plan
from shardwise.predict import predict
from shardwise.prediction import Prediction
from shardwise.reconcile.utilisation import Utilisation, utilisations


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedProfile:
    """What a plan adds to a profile."""

    plan: Plan
    prediction: Prediction
    knobs: tuple[TurnedKnobs, ...]
    """Gains of turned knobs, for every finding of the profile in its order."""
    utilisations: tuple[Utilisation, ...]
    notes: tuple[str, ...]
    """Sentences on where the trace is of something else than the plan."""


def planned_profile(profile: TraceProfile, plan: Plan) -> PlannedProfile:
    """The knobs that the findings name, turned in the plan, and the MFU of the measured step."""
    pinned = replace(plan, recipe=replace(plan.recipe, global_batch_size=plan.global_batch_size))
    prediction = predict(pinned)
    return PlannedProfile(
        plan=plan,
        prediction=prediction,
        knobs=turn_knobs(profile, plan, prediction),
        utilisations=utilisations(pinned, prediction, step_s=profile.split.step_s, device=profile.ranks[0].device_name),
        notes=tuple(_contradictions(profile, plan)),
    )


def _contradictions(profile: TraceProfile, plan: Plan) -> Iterator[str]:
    if profile.world_size not in (None, plan.layout.world_size):
        yield (
            f"the trace is of {profile.world_size} ranks and the plan of {plan.layout.world_size}: gains and MFU are "
            "those of another run"
        )

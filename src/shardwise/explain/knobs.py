"""The knobs that a profile's findings name, turned in the plan that was running and predicted again.

A trace bounds what a knob can gain; a plan says what it does gain, and what takes the place of the time that went away.
The gain is the predicted share of the step, of the measured step: what the prediction gets wrong of both plans alike
falls out.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from shardwise.explain.changes import verify_edits
from shardwise.explain.records import VerifiedChange
from shardwise.measure.profile_records import Knob, ProfileFinding, TraceProfile
from shardwise.plan import Plan
from shardwise.prediction import Prediction
from shardwise.search.edits import FLAG, TRAINING, Edit, edit, faster_edits, without_activation_offload
from shardwise.units import Seconds

__all__ = ["KnobGain", "TurnedKnobs", "turn_knobs"]

WORTH_SAYING_FRACTION = 0.005
"""Share of the step time; predictions do not resolve smaller gains."""
AHEAD_UNITS = (1, 2, 4)
MAX_GAINS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class KnobGain:
    """One knob that was turned in the plan."""

    edit: str
    """The edit as it is typed, such as ``prefetch_units=2``."""
    cost: str
    predicted_step_s: Seconds
    """Predicted step time of the plan with the knob turned."""
    gain_s: Seconds
    """Time that the knob is predicted to save of the measured step."""
    gain_fraction: float
    """The saved time as a share of the measured step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnedKnobs:
    """The knobs that were turned against one finding, by what they gain."""

    finding: ProfileFinding
    gains: tuple[KnobGain, ...]
    """The largest first."""
    useless: tuple[str, ...]
    """Edits that gain nothing worth saying, or cost time."""
    too_large: tuple[str, ...]
    """Edits whose plan does not fit the memory."""


def turn_knobs(profile: TraceProfile, plan: Plan, prediction: Prediction) -> tuple[TurnedKnobs, ...]:
    """Every finding, in its order, with the knobs that the rules allow in the plan, each predicted again.

    Args:
        profile: of the step that was measured.
        plan: what was running.
        prediction: of the plan.
    """
    wanted = {finding: tuple(_edits(finding, plan)) for finding in profile.findings}
    edits = {edit.changes: edit for found in wanted.values() for edit in found}
    tried = {change.changes: change for change in verify_edits(edits.values(), plan=plan, prediction=prediction)}
    return tuple(
        _turned(finding, [tried[edit.changes] for edit in found if edit.changes in tried], profile.split.step_s)
        for finding, found in wanted.items()
    )


def _turned(finding: ProfileFinding, changes: list[VerifiedChange], step_s: Seconds) -> TurnedKnobs:
    gains = [
        KnobGain(
            edit=change.edit,
            cost=change.cost,
            predicted_step_s=change.step_s,
            gain_s=(1 - change.step_ratio) * step_s,
            gain_fraction=1 - change.step_ratio,
        )
        for change in changes
        if change.fits and 1 - change.step_ratio >= WORTH_SAYING_FRACTION
    ]
    told = {gain.edit for gain in gains}
    return TurnedKnobs(
        finding=finding,
        gains=tuple(sorted(gains, key=lambda gain: -gain.gain_s)[:MAX_GAINS]),
        useless=tuple(change.edit for change in changes if change.fits and change.edit not in told),
        too_large=tuple(change.edit for change in changes if not change.fits),
    )


def _edits(finding: ProfileFinding, plan: Plan) -> Iterator[Edit]:
    """Edits that may help against a finding, each a knob of the plan that is not turned yet."""
    names = AXIS_KNOBS.get(_family(finding.axis), EVERY_AXIS) if finding.knob == "overlap" else KNOBS[finding.knob]
    for tried in (*faster_edits(plan), *_communication_edits(plan)):
        if tried.changes and tried.changes[0][0] in names:
            yield tried


def _family(axis: str) -> str:
    """The parallelism that an axis belongs to, as its name begins; data parallelism may be over dp_shard and cp."""
    return next((name for name in AXIS_KNOBS if axis.startswith(name)), "")


KNOBS: dict[Knob, tuple[str, ...]] = {
    "compile": ("compile", "micro_batch_size", "recompute", "attention"),
    "prefetch": ("prefetch_units", "reshard_after_forward", "micro_batch_size", "dp_replicate", "zero_stage"),
    "copies": ("offload", "activation_offload"),
    "straggler": (),
    "idle": (),
}
"""Which edits a finding names, by the field that they change first; the last two are no matter of a plan."""
AXIS_KNOBS: dict[str, tuple[str, ...]] = {
    "dp": (
        "overlap_grad_reduce",
        "defer_grad_reduce",
        "reshard_after_forward",
        "reduce_dtype",
        "micro_batch_size",
        "dp_replicate",
    ),
    "tp": ("async_tensor_parallel", "tp"),
    "cp": ("cp",),
    "pp": ("pp", "schedule", "micro_batch_size"),
}
"""Fields whose edits may help against exposed collectives, by the parallelism that issues these."""
EVERY_AXIS = tuple(dict.fromkeys(name for names in AXIS_KNOBS.values() for name in names))


def _communication_edits(plan: Plan) -> Iterator[Edit]:
    """Edits that hide communication or move less of it; the rules say which of them the engine has."""
    layout, recipe = plan.layout, plan.recipe
    for units in AHEAD_UNITS:
        if units > layout.prefetch_units:
            yield edit(plan, f"weights of {units} more unit(s) gathered at once", FLAG, prefetch_units=units)
    if layout.tp > 1 and not layout.async_tensor_parallel:
        cost = "products in pieces"
        yield edit(plan, cost, FLAG, async_tensor_parallel=True, sequence_parallel=True, compile=True)
    if layout.defer_grad_reduce is not True and plan.num_microbatches > 1:
        yield edit(plan, "whole gradients are kept between micro-batches", FLAG, defer_grad_reduce=True)
    if recipe.activation_offload:
        yield without_activation_offload(plan)
    if recipe.reduce_dtype != "bf16" and recipe.precision != "fp32":
        cost = "gradients are rounded before they are added up: check the loss"
        yield edit(plan, cost, TRAINING, reduce_dtype="bf16")

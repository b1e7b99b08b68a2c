"""Edits that were tried: checked against the rules and predicted again, in the order in which they are worth trying."""

from collections.abc import Iterable, Iterator
from itertools import chain

from shardwise.explain.edits import HARDWARE, TRAINING, Edit, faster_edits, host_edits, smaller_edits
from shardwise.explain.records import FASTER_RATIO, VerifiedChange
from shardwise.explain.state_counts import is_counted_by_the_textbook
from shardwise.layout import Layout
from shardwise.plan import Plan
from shardwise.predict import predict
from shardwise.prediction import Prediction
from shardwise.recipe import Recipe
from shardwise.rules import Changes, find_errors
from shardwise.rules.changes import merge
from shardwise.units import Bytes

__all__ = ["Predictions", "beside", "faster_changes", "smallest_changes", "verify", "verify_edits"]

MAX_CHANGES = 8
MAX_COMBINED = 3

SHARDING = ("zero_stage", "dp_replicate", "dp_shard")
"""Fields by which the states are divided over more or fewer ranks."""

Predictions = dict[tuple[Layout, Recipe], Prediction]
"""Predictions of edited plans by layout and recipe. Whoever tries edits of one plan several times passes the same ones,
so that no plan is predicted twice."""


def smallest_changes(
    plan: Plan, prediction: Prediction, *, limit: int = MAX_CHANGES, made: Predictions | None = None
) -> tuple[VerifiedChange, ...]:
    """Changes that make a plan fit safely, or that save most when no single one does; smallest first, and adapters,
    which train something else, behind the others.

    When one edit is not enough, the edits that save most for their effort are added up until the plan fits; flags and
    degrees are added up, too, before an edit that trains otherwise or buys GPUs. What is saved is memory of the GPU, or
    of the host when only the host lacks it.
    """
    made = {} if made is None else made
    saving = [change for change in _tried(plan, prediction, made) if _relief_bytes(change, prediction) > 0]
    fitting = sorted(
        (change for change in saving if change.fits), key=lambda one: (one.trains_adapters, *_by_effort(one))
    )
    safe = [change for change in fitting if not change.is_borderline]
    if fitting:
        shown = safe or fitting
        gentler = _combine(plan, prediction, made, below=TRAINING) if shown[0].effort >= TRAINING else ()
        return tuple((*gentler, *shown)[:limit])
    combined = _combine(plan, prediction, made, below=HARDWARE)
    helpful = sorted(saving, key=lambda change: -_relief_bytes(change, prediction))[: limit - len(combined)]
    return (*combined, *helpful)


def faster_changes(
    plan: Plan,
    prediction: Prediction,
    *,
    limit: int = MAX_CHANGES,
    made: Predictions | None = None,
    also: Iterable[Edit] = (),
) -> tuple[VerifiedChange, ...]:
    """Changes that make the step of a plan that fits safely shorter, and still fit: those that fit safely first, other
    numerics behind those that train the same, and of each the largest gain first.

    Args:
        plan: what is changed.
        prediction: of the plan.
        limit: changes that are returned at most; of those that turn the same knob the fastest alone is.
        made: predictions to share.
        also: edits that are tried besides.
    """
    tried = verify_edits(chain(faster_edits(plan), also), plan=plan, prediction=prediction, made=made)
    winning = [change for change in tried if change.fits and change.step_ratio < FASTER_RATIO]
    winning.sort(key=lambda change: (change.is_borderline, change.effort >= TRAINING, change.step_ratio))
    knobs = {_knob(change): change for change in reversed(winning)}
    return tuple(change for change in winning if knobs[_knob(change)] is change)[:limit]


def _knob(change: VerifiedChange) -> tuple[str, bool]:
    """The field that a change is about, which its edit names first, and whether the changed plan is at the edge."""
    name = change.changes[0][0]
    return SHARDING[0] if name in SHARDING else name, change.is_borderline


def verify_edits(
    edits: Iterable[Edit], *, plan: Plan, prediction: Prediction, made: Predictions | None = None
) -> Iterator[VerifiedChange]:
    """Each edit that breaks no rule, with what its plan was predicted to need; the same plan is tried once.

    Under the textbook convention an edit is left out when that arithmetic does not see it.
    """
    made = {} if made is None else made
    seen = {(plan.layout, plan.recipe)}
    for edit in edits:
        key = (edit.plan.layout, edit.plan.recipe)
        if key in seen or not edit.changes or find_errors(edit.plan) or not _is_counted(plan, edit.plan):
            continue
        seen.add(key)
        if key not in made:
            made[key] = predict(edit.plan)
        yield beside(edit, made[key], prediction)


def _is_counted(plan: Plan, edited: Plan) -> bool:
    return plan.recipe.convention != "seed" or is_counted_by_the_textbook(plan, edited)


def verify(edit: Edit, *, prediction: Prediction) -> VerifiedChange:
    """An edit with the prediction of the edited plan beside that of the original plan."""
    return beside(edit, predict(edit.plan), prediction)


def beside(edit: Edit, predicted: Prediction, prediction: Prediction) -> VerifiedChange:
    """An edit whose plan was predicted already, with that prediction beside the original plan's."""
    return VerifiedChange(
        changes=edit.changes,
        cost=edit.cost,
        effort=edit.effort,
        plan=edit.plan,
        fit=predicted.fit,
        device_used_bytes=predicted.memory.worst.device_used_bytes,
        needed_bytes=predicted.memory.needed_bytes,
        saved_bytes=prediction.memory.needed_bytes - predicted.memory.needed_bytes,
        host_saved_bytes=prediction.memory.host_bytes_per_node - predicted.memory.host_bytes_per_node,
        step_s=predicted.time.step_s,
        step_ratio=predicted.time.step_s / prediction.time.step_s,
    )


def _tried(plan: Plan, prediction: Prediction, made: Predictions) -> Iterator[VerifiedChange]:
    """Every edit that may save what the plan lacks."""
    edits = smaller_edits(plan) if prediction.memory.fits_host else chain(host_edits(plan), smaller_edits(plan))
    return verify_edits(edits, plan=plan, prediction=prediction, made=made)


def _relief_bytes(change: VerifiedChange, prediction: Prediction) -> Bytes:
    """Bytes that a change saves of the memory that is short: the host's if the GPU has enough, else the GPU's."""
    memory = prediction.memory
    return change.host_saved_bytes if memory.fits_device and not memory.fits_host else change.saved_bytes


def _by_effort(change: VerifiedChange) -> tuple[int, float, int, str]:
    return (change.effort, round(change.step_ratio, 4), change.device_used_bytes, change.edit)


def _combine(plan: Plan, prediction: Prediction, made: Predictions, *, below: int) -> tuple[VerifiedChange, ...]:
    """One change made of several edits of less effort, added up greedily until the plan fits safely.

    Each is the one of the smallest effort that is enough, or else the one that saves most.
    """
    added: list[VerifiedChange] = []
    changes: Changes = ()
    current, now, is_safe = plan, prediction, False
    while len(added) < MAX_COMBINED and not is_safe:
        saving = [
            change
            for change in _tried(current, now, made)
            if _relief_bytes(change, now) > 0 and change.effort < below and not change.trains_adapters
        ]
        if not saving:
            break
        safe = sorted((change for change in saving if change.fits and not change.is_borderline), key=_by_effort)
        added.append(safe[0] if safe else _most_relief(saving, now))
        changes = merge(changes, added[-1].changes)
        current, is_safe = added[-1].plan, bool(safe)
        now = made[current.layout, current.recipe]
    if not added or not now.fits:
        return ()
    costs = "; ".join(dict.fromkeys(change.cost for change in added))
    edit = Edit(changes=changes, cost=costs, effort=max(change.effort for change in added), plan=current)
    return (beside(edit, now, prediction),)


def _most_relief(saving: Iterable[VerifiedChange], prediction: Prediction) -> VerifiedChange:
    return max(saving, key=lambda change: _relief_bytes(change, prediction))

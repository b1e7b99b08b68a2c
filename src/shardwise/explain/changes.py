"""Remedies: edits that keep the rules, each predicted again, in the order in which they are worth trying."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain

from shardwise.cluster import Cluster
from shardwise.explain.records import FASTER_RATIO, VerifiedChange
from shardwise.explain.state_counts import is_counted_by_the_textbook
from shardwise.layout import Layout
from shardwise.plan import Plan
from shardwise.predict import predict
from shardwise.prediction import Prediction
from shardwise.recipe import Recipe
from shardwise.rules import Changes, find_errors
from shardwise.rules.changes import merge
from shardwise.search.edits import (
    HARDWARE,
    TRAINING,
    Edit,
    edit,
    faster_edits,
    grown,
    hardware_edits,
    host_edits,
    smaller_edits,
    worth,
)
from shardwise.search.nearest_size import nearest_size
from shardwise.units import Bytes

__all__ = [
    "Predictions",
    "beside",
    "faster_changes",
    "first_remedy",
    "more_gpus",
    "remedies",
    "verify",
    "verify_edits",
]

MAX_CHANGES = 8
MAX_COMBINED = 3
MAX_GPU_FACTOR = 128
NOTHING_FITS = (
    f"none of the changes that were tried makes it fit, alone or up to {MAX_COMBINED} together: `shardwise plan` "
    "searches every layout, and names other GPUs where none fits"
)

SHARDING = ("zero_stage", "dp_replicate", "dp_shard")
"""Fields by which the states are divided over more or fewer ranks."""

Predictions = dict[tuple[Layout, Recipe], Prediction]
"""Predictions of edited plans by layout and recipe. Whoever tries edits of one plan several times passes the same ones,
so that no plan is predicted twice."""


def remedies(
    plan: Plan,
    prediction: Prediction,
    *,
    limit: int = MAX_CHANGES,
    made: Predictions | None = None,
    needed_bytes: Bytes = 0,
) -> tuple[VerifiedChange, ...]:
    """Changes that make a plan fit safely, in the order of :func:`~shardwise.search.edits.worth`.

    Where none does, they are those that make it fit at the edge, and without these the ones that save most.

    When flags and degrees are not enough one by one, those that save most are added up until the plan fits; then edits
    that train otherwise are added up, too. What is saved is memory of the GPU, or of the host when only that lacks it.

    Args:
        plan: what is changed.
        prediction: of the plan.
        limit: changes on the same hardware that are returned at most.
        made: predictions to share.
        needed_bytes: of the plan as it ran, where it needed more than predicted; each change is taken to need as much
            more than its prediction.
    """
    made = {} if made is None else made
    ratio = max(1.0, needed_bytes / prediction.memory.needed_bytes)
    tried = [change for change in _tried(plan, prediction, made) if _relief_bytes(change, prediction) > 0]
    found = [
        *tried,
        *_combined(plan, prediction, made, tried, ratio),
        *_on_other_hardware(plan, prediction, made, ratio),
    ]
    fitting = [change for change in {one.edit: one for one in found}.values() if _holds(change, ratio)]
    shown = [change for change in fitting if not change.is_borderline] or fitting
    if not shown:
        return () if ratio > 1 else tuple(sorted(tried, key=lambda change: -_relief_bytes(change, prediction))[:limit])
    ordered = sorted(shown, key=lambda change: _worth(change, plan))
    own = [change for change in ordered if change.effort < HARDWARE][:limit]
    return tuple(change for change in ordered if change.effort == HARDWARE or change in own)


def first_remedy(plan: Plan, prediction: Prediction, *, needed_bytes: Bytes = 0) -> VerifiedChange | None:
    """The change to try first of a plan that may not fit; ``None`` where no change makes it fit."""
    found = remedies(plan, prediction, needed_bytes=needed_bytes)
    return next((change for change in found if change.fits), None)


def more_gpus(plan: Plan, prediction: Prediction, *, ratio: float = 1.0) -> VerifiedChange | None:
    """The nearest larger cluster of whole servers on which the plan fits safely when dp_shard grows with it."""

    def holding(cluster: Cluster) -> VerifiedChange | None:
        tried = (verify(one, prediction=prediction) for one in grown(plan, cluster) if not find_errors(one.plan))
        return next((change for change in tried if _is_safe(change, ratio)), None)

    return nearest_size(plan.cluster, answer=holding, max_factor=MAX_GPU_FACTOR)


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
    for one in edits:
        key = (one.plan.layout, one.plan.recipe)
        if key in seen or not one.changes or find_errors(one.plan) or not _is_counted(plan, one.plan):
            continue
        seen.add(key)
        if key not in made:
            made[key] = predict(one.plan)
        yield beside(one, made[key], prediction)


def _is_counted(plan: Plan, edited: Plan) -> bool:
    return plan.recipe.convention != "seed" or is_counted_by_the_textbook(plan, edited)


def verify(proposed: Edit, *, prediction: Prediction) -> VerifiedChange:
    """An edit with the prediction of the edited plan beside that of the original plan."""
    return beside(proposed, predict(proposed.plan), prediction)


def beside(proposed: Edit, predicted: Prediction, prediction: Prediction) -> VerifiedChange:
    """An edit whose plan was predicted already, with that prediction beside the original plan's."""
    return VerifiedChange(
        changes=proposed.changes,
        cost=proposed.cost,
        effort=proposed.effort,
        plan=proposed.plan,
        fit=predicted.fit,
        device_used_bytes=predicted.memory.worst.device_used_bytes,
        needed_bytes=predicted.memory.needed_bytes,
        saved_bytes=prediction.memory.needed_bytes - predicted.memory.needed_bytes,
        host_saved_bytes=prediction.memory.host_bytes_per_node - predicted.memory.host_bytes_per_node,
        step_s=predicted.time.step_s,
        step_ratio=predicted.time.step_s / prediction.time.step_s,
    )


def _tried(plan: Plan, prediction: Prediction, made: Predictions) -> Iterator[VerifiedChange]:
    """Every edit that may save what the plan lacks; what the hosts then lack is no saving."""
    edits = smaller_edits(plan) if prediction.memory.fits_host else chain(host_edits(plan), smaller_edits(plan))
    for change in verify_edits(edits, plan=plan, prediction=prediction, made=made):
        if not prediction.memory.fits_host or made[change.plan.layout, change.plan.recipe].memory.fits_host:
            yield change


def _relief_bytes(change: VerifiedChange, prediction: Prediction) -> Bytes:
    """Bytes that a change saves of the memory that is short: the host's if the GPU has enough, else the GPU's."""
    memory = prediction.memory
    return change.host_saved_bytes if memory.fits_device and not memory.fits_host else change.saved_bytes


def _holds(change: VerifiedChange, ratio: float) -> bool:
    return change.fits and change.needed_bytes * ratio <= change.plan.cluster.gpu.memory_bytes


def _is_safe(change: VerifiedChange, ratio: float) -> bool:
    return _holds(change, ratio) and not change.is_borderline


def _on_other_hardware(plan: Plan, prediction: Prediction, made: Predictions, ratio: float) -> Iterator[VerifiedChange]:
    """More GPUs, other GPUs and other hosts, with the plan as it is, or else with what saves most without them."""
    added = _added_up(plan, prediction, made, below=TRAINING, ratio=ratio)
    bases = ((), added) if added and not _is_safe(added[-1], ratio) else ((),)
    for tried in (_on_more_gpus, _on_others):
        found: list[VerifiedChange] = []
        for parts in bases:
            base = parts[-1].plan if parts else plan
            found = found or [_after(parts, change) for change in tried(base, prediction, ratio)]
        yield from found


def _on_more_gpus(plan: Plan, prediction: Prediction, ratio: float) -> Iterator[VerifiedChange]:
    more = more_gpus(plan, prediction, ratio=ratio)
    if more is not None:
        yield more


def _on_others(plan: Plan, prediction: Prediction, ratio: float) -> Iterator[VerifiedChange]:
    for one in hardware_edits(plan, prediction.memory):
        if not find_errors(one.plan):
            change = verify(one, prediction=prediction)
            if _holds(change, ratio):
                yield change


def _after(parts: Sequence[VerifiedChange], change: VerifiedChange) -> VerifiedChange:
    """A change of a plan that was changed before, as one of the plan as it was."""
    before = {name: value for part in parts for name, value in part.changes if name not in dict(change.changes)}
    return replace(change, changes=(*change.changes, *before.items()), cost=_costs((change, *parts)))


def _costs(parts: Iterable[VerifiedChange]) -> str:
    return "; ".join(dict.fromkeys(part.cost for part in parts if not part.cost.startswith("none")))


def _combined(
    plan: Plan, prediction: Prediction, made: Predictions, tried: Sequence[VerifiedChange], ratio: float
) -> Iterator[VerifiedChange]:
    """Edits that are added up: those of the least effort of which none is enough alone, and adapters with others."""
    own = [one.effort for one in tried if _is_safe(one, ratio) and not one.trains_adapters]
    least = min(own, default=HARDWARE)
    for below, adapts in ((TRAINING, False), (HARDWARE, False), (HARDWARE, True)):
        if least < below:
            return
        parts = _added_up(plan, prediction, made, below=below, ratio=ratio, adapts=adapts)
        yield from _without_idle(plan, prediction, made, parts, ratio)


def _added_up(
    plan: Plan, prediction: Prediction, made: Predictions, *, below: int, ratio: float, adapts: bool = False
) -> tuple[VerifiedChange, ...]:
    """Edits of less effort one after the other, until the plan fits safely: each the first that is enough, or else the
    one that saves most."""
    added: list[VerifiedChange] = []
    current, now = plan, prediction
    while len(added) < MAX_COMBINED:
        saving = [
            change
            for change in _tried(current, now, made)
            if _relief_bytes(change, now) > 0 and change.effort < below and adapts >= change.trains_adapters
        ]
        safe = [change for change in saving if _is_safe(change, ratio)]
        if safe:
            return (*added, min(safe, key=lambda one: _worth(one, plan)))
        if not saving:
            break
        added.append(max(saving, key=lambda change: _relief_bytes(change, now)))
        current = added[-1].plan
        now = made[current.layout, current.recipe]
    return tuple(added)


def _without_idle(
    plan: Plan, prediction: Prediction, made: Predictions, parts: Sequence[VerifiedChange], ratio: float
) -> Iterator[VerifiedChange]:
    """Edits as one change, without those that the others fit without; nothing where they do not fit."""
    for left_out in (*parts[:-1], None):
        rest = [part for part in parts if part is not left_out]
        together: Changes = ()
        for part in rest:
            together = merge(together, part.changes)
        one = edit(plan, _costs(rest), max((part.effort for part in rest), default=0), together)
        found = list(verify_edits((one,), plan=plan, prediction=prediction, made=made))
        if found and (_is_safe(found[0], ratio) or (left_out is None and _holds(found[0], ratio))):
            yield found[0]
            return


def _worth(change: VerifiedChange, asked: Plan) -> tuple[bool, bool, int, float]:
    return worth(change.plan, asked=asked, effort=change.effort, step_s=change.step_s)

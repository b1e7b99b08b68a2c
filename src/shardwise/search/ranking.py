"""Orders the plans that fit, finds ties, recommends the simplest of them, and says why every other plan lost."""

from collections.abc import Sequence

from shardwise.layout import Layout
from shardwise.ledger import TIME_COMPONENTS, TimeComponent
from shardwise.plan import Plan
from shardwise.prediction import Prediction
from shardwise.search.evaluation import Evaluated
from shardwise.search.records import Difference, Objective, RankedPlan
from shardwise.units import SECONDS_PER_HOUR, format_gib, format_percent, format_seconds

__all__ = ["best_of_each_family", "objective_value", "pareto_front", "rank"]

MAX_TIE_FRACTION = 0.05
"""Two layouts of one model share most of the prediction's error, so the band of a single figure would call too much a
tie; the tie is half that band, and never more than this."""
SAME_FRACTION = 0.01
"""Among plans with equally many axes only this much speed is given up for less tensor or pipeline parallelism."""
SHOWN_DIFFERENCES = 3
NOTEWORTHY_FRACTION = 0.005

COMPONENT_WORDS: dict[TimeComponent, str] = {
    "forward": "forward",
    "backward": "backward",
    "recompute": "recomputation",
    "optimizer": "optimizer",
    "exposed_communication": "exposed communication",
    "pipeline_bubble": "pipeline bubble",
    "offload": "offload",
    "other": "other work",
}


def objective_value(evaluated: Evaluated, objective: Objective) -> float:
    """The figure to make small: seconds per step, dollars (or GPU-hours) per step, bytes, or GPUs."""
    prediction, cluster = evaluated.prediction, evaluated.plan.cluster
    if objective == "memory":
        return float(prediction.memory.needed_bytes)
    if objective == "fewest_gpus":
        return float(cluster.num_gpus)
    step_s = prediction.time.step_s
    if objective == "step_time":
        return step_s
    usd = cluster.price.usd_per_gpu_hour if cluster.price else 1.0
    return step_s * cluster.num_gpus / SECONDS_PER_HOUR * usd


def best_of_each_family(evaluated: Sequence[Evaluated], objective: Objective) -> list[Evaluated]:
    """One variant of every set of degrees, so that runners-up are really different layouts.

    The best one, unless a variant that ties with it fits safely where the best one's memory band leaves the device.
    """
    families: dict[tuple[int, ...], list[Evaluated]] = {}
    for candidate in sorted(evaluated, key=lambda found: _order(found, objective)):
        families.setdefault(candidate.family, []).append(candidate)
    return [_representative(variants, objective) for variants in families.values()]


def _representative(variants: Sequence[Evaluated], objective: Objective) -> Evaluated:
    best = variants[0]
    limit = objective_value(best, objective) * (1 + _tie_fraction(best.prediction))
    ties = [found for found in variants if objective_value(found, objective) <= limit]
    return min(ties, key=lambda found: (_is_borderline(found.prediction), objective_value(found, objective)))


def rank(evaluated: Sequence[Evaluated], *, objective: Objective, limit: int) -> tuple[RankedPlan, ...]:
    """Plans in order of preference: the simplest safe tie of the best first, then by the objective."""
    ordered = sorted(best_of_each_family(evaluated, objective), key=lambda found: _order(found, objective))
    if not ordered:
        return ()
    best = ordered[0]
    best_value = objective_value(best, objective)
    tie_fraction = _tie_fraction(best.prediction)
    ties = [found for found in ordered if objective_value(found, objective) <= best_value * (1 + tie_fraction)]
    winner = _simplest(ties, objective)
    others = [found for found in ordered if found is not winner][: limit - 1]
    return tuple(
        RankedPlan(
            rank=position,
            plan=found.plan,
            prediction=found.prediction,
            objective_value=objective_value(found, objective),
            ratio_to_best=objective_value(found, objective) / best_value,
            is_tie=found in ties,
            num_axes=num_axes(found.plan.layout),
            differences=() if found is winner else _differences(found.prediction, winner.prediction),
            why=_why_it_won(winner, best, len(ordered))
            if found is winner
            else _why_it_lost(found, winner, found in ties),
        )
        for position, found in enumerate((winner, *others), start=1)
    )


def _simplest(ties: Sequence[Evaluated], objective: Objective) -> Evaluated:
    """Of the ties that fit safely, those with the fewest axes; of these, the least model parallel of the fastest."""
    safest = min(_is_borderline(found.prediction) for found in ties)
    safe = [found for found in ties if _is_borderline(found.prediction) == safest]
    fewest = min(num_axes(found.plan.layout) for found in safe)
    few = [found for found in safe if num_axes(found.plan.layout) == fewest]
    limit = (1 + SAME_FRACTION) * min(objective_value(found, objective) for found in few)
    fast = [found for found in few if objective_value(found, objective) <= limit]
    return min(fast, key=lambda found: _simplicity(found.plan.layout))


def pareto_front(evaluated: Sequence[Evaluated]) -> list[Evaluated]:
    """Candidates that no other beats in both step time and memory, fastest first."""
    front: list[Evaluated] = []
    least = float("inf")
    for found in sorted(evaluated, key=lambda item: (item.prediction.time.step_s, item.prediction.memory.needed_bytes)):
        needed = found.prediction.memory.needed_bytes
        if needed < least:
            front.append(found)
            least = needed
    return front


def num_axes(layout: Layout) -> int:
    """Kinds of parallelism in use."""
    degrees = (layout.dp_replicate, layout.dp_shard, layout.tp, layout.cp, layout.pp, layout.ep, layout.vpp)
    return sum(degree > 1 for degree in degrees)


def _order(found: Evaluated, objective: Objective) -> tuple[float | int | str, ...]:
    recipe = found.plan.recipe
    return (
        objective_value(found, objective),
        found.prediction.time.step_s,
        *_simplicity(found.plan.layout),
        recipe.micro_batch_size,
        recipe.recompute,
    )


def _simplicity(layout: Layout) -> tuple[int | str, ...]:
    """Fewer axes, then less tensor and pipeline parallelism: simplest setup that works first."""
    model_parallel = layout.tp * layout.pp * layout.cp
    return (num_axes(layout), model_parallel, layout.pp, layout.tp, layout.ep, layout.vpp, layout.schedule)


def _tie_fraction(prediction: Prediction) -> float:
    time = prediction.time
    return min(MAX_TIE_FRACTION, max(0.0, (time.step_high_s / time.step_s - 1) / 2))


def _is_borderline(prediction: Prediction) -> bool:
    """Whether the capacity lies inside the memory band, so that the plan may run out after all."""
    return prediction.memory.is_borderline


def _differences(prediction: Prediction, winner: Prediction) -> tuple[Difference, ...]:
    mine = {entry.component: entry.duration_s for entry in prediction.time.components}
    theirs = {entry.component: entry.duration_s for entry in winner.time.components}
    found = [
        Difference(component=component, slower_s=mine.get(component, 0.0) - theirs.get(component, 0.0))
        for component in TIME_COMPONENTS
    ]
    return tuple(sorted(found, key=lambda difference: -difference.slower_s))


def _why_it_won(winner: Evaluated, best: Evaluated, num_layouts: int) -> str:
    step = format_seconds(winner.prediction.time.step_s)
    headroom = format_gib(winner.prediction.memory.spare_bytes)
    safety = (
        "" if not _is_borderline(winner.prediction) else "; the device lies inside its memory band, so try it first"
    )
    if winner is best:
        return f"Best of {num_layouts} layouts that fit: {step} per step with {headroom} to spare{safety}."
    slower = winner.prediction.time.step_s / best.prediction.time.step_s - 1
    behind = format_percent(slower) if slower >= NOTEWORTHY_FRACTION else "next to nothing"
    reason = (
        "simpler"
        if _simplicity(winner.plan.layout) < _simplicity(best.plan.layout)
        else "safer: the other's memory band reaches beyond the device"
    )
    return (
        f"{step} per step, {behind} from the fastest ({short_layout(best.plan)}), which is inside the "
        f"error of a prediction; it is {reason}, with {headroom} to spare{safety}."
    )


def _why_it_lost(found: Evaluated, winner: Evaluated, is_tie: bool) -> str:
    mine, theirs = found.prediction, winner.prediction
    slower_s = mine.time.step_s - theirs.time.step_s
    losses = [
        difference
        for difference in _differences(mine, theirs)
        if difference.slower_s > NOTEWORTHY_FRACTION * theirs.time.step_s
    ][:SHOWN_DIFFERENCES]
    parts = ", ".join(f"{COMPONENT_WORDS[loss.component]} +{format_seconds(loss.slower_s)}" for loss in losses)
    memory = _memory_text(theirs.memory.needed_bytes - mine.memory.needed_bytes)
    if is_tie:
        ratio = f"{slower_s / theirs.time.step_s:+.1%}" + (f": {parts}" if parts and slower_s > 0 else "")
        return f"As fast within the error ({ratio}), but {_tie_reason(found, winner)}; {memory}."
    ratio = f"{format_percent(slower_s / theirs.time.step_s)} slower (+{format_seconds(slower_s)})"
    if slower_s <= 0:
        return f"{format_percent(-slower_s / theirs.time.step_s)} faster, but worse by the objective; {memory}."
    return f"{ratio}: {parts or 'a little of everything'}; {memory}."


def _tie_reason(found: Evaluated, winner: Evaluated) -> str:
    if _is_borderline(found.prediction) and not _is_borderline(winner.prediction):
        return "its memory band reaches beyond the device"
    mine, theirs = num_axes(found.plan.layout), num_axes(winner.plan.layout)
    if mine > theirs:
        return f"it combines {mine} axes instead of {theirs}"
    if found.prediction.time.step_s > winner.prediction.time.step_s:
        return "it is no simpler"
    return "it uses more tensor, pipeline or context parallelism"


def _memory_text(saved_bytes: float) -> str:
    return f"saves {format_gib(saved_bytes)}" if saved_bytes >= 0 else f"needs {format_gib(-saved_bytes)} more"


def short_layout(plan: Plan) -> str:
    """The degrees above one, as ``tp=8 pp=2 dp_shard=4``."""
    layout = plan.layout
    names = ("dp_replicate", "dp_shard", "tp", "cp", "pp", "vpp", "ep")
    shown = [f"{name}={getattr(layout, name)}" for name in names if getattr(layout, name) > 1]
    return " ".join(shown) or "one GPU"

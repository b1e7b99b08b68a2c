"""Orders the plans that fit, and recommends the one whose speed pays best for what it combines."""

from collections.abc import Sequence
from dataclasses import dataclass

from shardwise.ledger import TIME_COMPONENTS
from shardwise.prediction import Prediction
from shardwise.search.evaluation import Evaluated
from shardwise.search.price_list import MAX_LOSS_FRACTION, MAX_SAFETY_FRACTION, num_untried
from shardwise.search.reasons import why_it_lost, why_it_won
from shardwise.search.records import Difference, Objective, RankedPlan
from shardwise.search.simplicity import MAX_TIE_FRACTION, host_moves, num_axes, simplicity
from shardwise.units import SECONDS_PER_HOUR

__all__ = ["best_of_each_family", "objective_value", "pareto_front", "rank", "ranked_front"]


def objective_value(evaluated: Evaluated, objective: Objective) -> float:
    """The figure to make small: seconds, dollars (or GPU-hours) per step, or the two multiplied; bytes, or GPUs."""
    prediction, cluster = evaluated.prediction, evaluated.plan.cluster
    if objective == "memory":
        return float(prediction.memory.needed_bytes)
    if objective == "fewest_gpus":
        return float(cluster.num_gpus)
    step_s = prediction.time.step_s
    if objective == "step_time":
        return step_s
    usd = cluster.price.usd_per_gpu_hour if cluster.price else 1.0
    cost_usd = step_s * cluster.num_gpus / SECONDS_PER_HOUR * usd
    return cost_usd * step_s if objective == "cost_and_time" else cost_usd


def best_of_each_family(evaluated: Sequence[Evaluated], objective: Objective) -> list[Evaluated]:
    """One variant of every set of degrees, so that runners-up are really different layouts: the one that would be
    recommended if there were no other degrees."""
    families: dict[tuple[int, ...], list[Evaluated]] = {}
    for candidate in sorted(evaluated, key=lambda found: _order(found, objective)):
        families.setdefault(candidate.family, []).append(candidate)
    return [_preferred(variants, objective) for variants in families.values()]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Verdict:
    """Which plan is recommended, and what the others are compared with."""

    winner: Evaluated
    best: Evaluated
    """The plan with the best value of the objective, safe or not."""
    best_safe: Evaluated
    """The best by the objective among plans whose memory band stays inside the device; among all where none does."""
    ordered: Sequence[Evaluated]
    """One plan of each set of degrees, the best first; further variants after them."""
    num_layouts: int
    objective: Objective

    def ranked(self, found: Evaluated, *, rank: int) -> RankedPlan:
        """A plan with how it compares."""
        value = objective_value(found, self.objective)
        is_winner = found is self.winner
        return RankedPlan(
            rank=rank,
            plan=found.plan,
            prediction=found.prediction,
            objective_value=value,
            ratio_to_best=value / objective_value(self.best, self.objective),
            is_tie=_is_tie(found, self.winner, self.objective),
            num_axes=num_axes(found.plan.layout),
            price_fraction=found.price_fraction,
            differences=() if is_winner else _differences(found.prediction, self.winner.prediction),
            why=self._why_it_won() if is_winner else why_it_lost(found, self.winner, objective=self.objective),
        )

    def _why_it_won(self) -> str:
        return why_it_won(
            self.winner,
            best=self.best,
            best_safe=self.best_safe,
            num_layouts=self.num_layouts,
            objective=self.objective,
        )


def rank(evaluated: Sequence[Evaluated], *, objective: Objective, limit: int) -> tuple[RankedPlan, ...]:
    """Plans in order of preference: the recommended one, then by the objective.

    The best by the objective alone and the best safe one are always among them, also when another variant of their
    degrees stands for them. Where there are fewer sets of degrees than are shown, variants that recompute otherwise or
    run other micro-batches follow.
    """
    if not evaluated:
        return ()
    verdict = _verdict(evaluated, objective)
    others = [found for found in verdict.ordered if found is not verdict.winner][: limit - 1]
    return tuple(verdict.ranked(found, rank=rank) for rank, found in enumerate((verdict.winner, *others), start=1))


def ranked_front(evaluated: Sequence[Evaluated], *, objective: Objective) -> tuple[RankedPlan, ...]:
    """The front of time and memory, fastest first, each compared with the recommended plan."""
    if not evaluated:
        return ()
    verdict, front = _verdict(evaluated, objective), pareto_front(evaluated)
    return tuple(verdict.ranked(found, rank=position) for position, found in enumerate(front, start=1))


def _verdict(evaluated: Sequence[Evaluated], objective: Objective) -> _Verdict:
    by_objective = sorted(evaluated, key=lambda found: _order(found, objective))
    winner, families = _preferred(by_objective, objective), best_of_each_family(evaluated, objective)
    best, best_safe = by_objective[0], _safe(by_objective)[0]
    others = [found for found in families if found.family != winner.family]
    shown = list({id(found): found for found in (winner, best, best_safe, *others)}.values())
    variants = _variants([found for found in by_objective if not any(found is one for one in shown)], shown)
    return _Verdict(
        winner=winner,
        best=best,
        best_safe=best_safe,
        ordered=(*sorted(shown, key=lambda found: _order(found, objective)), *variants),
        num_layouts=len(families),
        objective=objective,
    )


def _variants(others: Sequence[Evaluated], shown: Sequence[Evaluated]) -> list[Evaluated]:
    """The first plan of each micro-batch and way to recompute that is not shown already."""
    kinds = {_kind(found): found for found in reversed(others)}
    known = {_kind(found) for found in shown}
    return [found for found in others if kinds[_kind(found)] is found and _kind(found) not in known]


def _kind(found: Evaluated) -> tuple[object, ...]:
    recipe = found.plan.recipe
    return (found.family, recipe.micro_batch_size, recipe.recompute, recipe.offload, recipe.activation_offload)


def _is_tie(found: Evaluated, other: Evaluated, objective: Objective) -> bool:
    """Whether a prediction cannot tell them apart by what the objective compares."""
    mine, theirs = _compared(found, objective), _compared(other, objective)
    if objective == "fewest_gpus" and found.plan.cluster.num_gpus != other.plan.cluster.num_gpus:
        return False
    fraction = min(MAX_TIE_FRACTION, _half_band_fraction(other.prediction, objective))
    return theirs / (1 + fraction) <= mine <= theirs * (1 + fraction)


def _compared(found: Evaluated, objective: Objective) -> float:
    """The figure that is predicted: among plans with equally many GPUs, the time."""
    return found.prediction.time.step_s if objective == "fewest_gpus" else objective_value(found, objective)


def _preferred(by_objective: Sequence[Evaluated], objective: Objective) -> Evaluated:
    """The recommended plan: the safe one whose step is shortest once the prices of what it combines are added.

    Only plans that come close to the best safe one with the fewest untried steps take part: in time within
    ``MAX_LOSS_FRACTION``, in memory within the error. Where no plan is safe, those at the edge of the device do.
    """
    safe = _hopeful(by_objective) or _safe(by_objective)
    if objective == "memory":
        close = [found for found in safe if _is_tie(found, safe[0], objective)]
    else:
        tried = min(safe, key=lambda found: num_untried(found.plan))
        limit = (1 + MAX_LOSS_FRACTION) * _compared(tried, objective)
        close = [found for found in safe if _compared(found, objective) <= limit]
    return min(close, key=lambda found: (found.priced_s, simplicity(found.plan.layout)))


def _safe(by_objective: Sequence[Evaluated]) -> Sequence[Evaluated]:
    """The plans whose memory band stays inside the device, or all plans where none does."""
    return [found for found in by_objective if not found.prediction.memory.is_borderline] or by_objective


def _hopeful(by_objective: Sequence[Evaluated]) -> Sequence[Evaluated]:
    """Plans at the edge of the device that are worth a try of minutes.

    They move less to the host than every safe plan, and the fastest of those takes more than
    ``MAX_SAFETY_FRACTION`` longer.
    """
    safe = [found for found in by_objective if not found.prediction.memory.is_borderline]
    if not safe:
        return ()
    least = min(host_moves(found.plan) for found in safe)
    limit_s = min(found.prediction.time.step_s for found in safe) / (1 + MAX_SAFETY_FRACTION)
    return [
        found for found in by_objective if host_moves(found.plan) < least and found.prediction.time.step_s < limit_s
    ]


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


def _order(found: Evaluated, objective: Objective) -> tuple[float | int | str, ...]:
    recipe = found.plan.recipe
    return (
        objective_value(found, objective),
        found.prediction.time.step_s,
        *simplicity(found.plan.layout),
        recipe.micro_batch_size,
        recipe.recompute,
    )


def _half_band_fraction(prediction: Prediction, objective: Objective) -> float:
    time, memory = prediction.time, prediction.memory
    above = memory.high_fraction if objective == "memory" else time.step_high_s / time.step_s
    return max(0.0, (above - 1) / 2)


def _differences(prediction: Prediction, winner: Prediction) -> tuple[Difference, ...]:
    mine = {entry.component: entry.duration_s for entry in prediction.time.components}
    theirs = {entry.component: entry.duration_s for entry in winner.time.components}
    found = [
        Difference(component=component, slower_s=mine.get(component, 0.0) - theirs.get(component, 0.0))
        for component in TIME_COMPONENTS
    ]
    return tuple(sorted(found, key=lambda difference: -difference.slower_s))

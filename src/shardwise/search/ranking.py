"""Orders the plans that fit, finds ties, and recommends the simplest of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from shardwise.ledger import TIME_COMPONENTS
from shardwise.prediction import Prediction
from shardwise.search.evaluation import Evaluated
from shardwise.search.reasons import why_it_lost, why_it_won
from shardwise.search.records import Difference, Objective, RankedPlan
from shardwise.search.simplicity import MAX_TIE_FRACTION, host_moves, num_axes, simplicity, straddles_nodes
from shardwise.units import SECONDS_PER_HOUR

__all__ = ["best_of_each_family", "objective_value", "pareto_front", "rank", "ranked_front"]

SAME_FRACTION = 0.01
"""Among plans with equally many axes only this much speed is given up for less tensor or pipeline parallelism."""


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

    The best one, unless a variant that ties with it fits safely where the best one's memory band leaves the device, or
    moves less to the host.
    """
    families: dict[tuple[int, ...], list[Evaluated]] = {}
    for candidate in sorted(evaluated, key=lambda found: _order(found, objective)):
        families.setdefault(candidate.family, []).append(candidate)
    return [_representative(variants, objective) for variants in families.values()]


def _representative(variants: Sequence[Evaluated], objective: Objective) -> Evaluated:
    ties = [found for found in variants if _is_tie(found, variants[0], objective)]
    return min(
        ties, key=lambda found: (_is_borderline(found.prediction), host_moves(found.plan), *_order(found, objective))
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Verdict:
    """Which plan is recommended, and what the others are compared with."""

    winner: Evaluated
    best: Evaluated
    """By the objective alone."""
    ordered: Sequence[Evaluated]
    """One plan of each set of degrees, the best first."""
    ties: Sequence[Evaluated]
    """Of them."""
    objective: Objective

    def ranked(self, found: Evaluated, *, rank: int) -> RankedPlan:
        """A plan with how it compares."""
        value, is_winner = objective_value(found, self.objective), found is self.winner
        is_tie = self._is_tie(found)
        return RankedPlan(
            rank=rank,
            plan=found.plan,
            prediction=found.prediction,
            objective_value=value,
            ratio_to_best=value / objective_value(self.best, self.objective),
            is_tie=is_tie,
            num_axes=num_axes(found.plan.layout),
            differences=() if is_winner else _differences(found.prediction, self.winner.prediction),
            why=self._why_it_won()
            if is_winner
            else why_it_lost(found, self.winner, is_tie=is_tie, objective=self.objective),
        )

    def _is_tie(self, found: Evaluated) -> bool:
        """Whether it is one of the ties; what lies between the best and the recommended plan is no less one."""
        return found in self.ties or _compared(found, self.objective) <= _compared(self.winner, self.objective)

    def _why_it_won(self) -> str:
        return why_it_won(
            self.winner, self.best, ties=self.ties, num_layouts=len(self.ordered), objective=self.objective
        )


def rank(evaluated: Sequence[Evaluated], *, objective: Objective, limit: int) -> tuple[RankedPlan, ...]:
    """Plans in order of preference: the simplest safe tie of the best first, then by the objective.

    The best is always among them, also when another variant of its degrees stands for it because it fits more safely.
    """
    if not evaluated:
        return ()
    verdict = _verdict(evaluated, objective)
    shown = verdict.ordered if verdict.best in verdict.ordered else (verdict.best, *verdict.ordered)
    others = [found for found in shown if found is not verdict.winner][: limit - 1]
    return tuple(verdict.ranked(found, rank=rank) for rank, found in enumerate((verdict.winner, *others), start=1))


def ranked_front(evaluated: Sequence[Evaluated], *, objective: Objective) -> tuple[RankedPlan, ...]:
    """The front of time and memory, fastest first, each compared with the recommended plan."""
    if not evaluated:
        return ()
    verdict, front = _verdict(evaluated, objective), pareto_front(evaluated)
    return tuple(verdict.ranked(found, rank=position) for position, found in enumerate(front, start=1))


def _verdict(evaluated: Sequence[Evaluated], objective: Objective) -> _Verdict:
    ordered = sorted(best_of_each_family(evaluated, objective), key=lambda found: _order(found, objective))
    best = min(evaluated, key=lambda found: _order(found, objective))
    ties = [found for found in ordered if _is_tie(found, best, objective)]
    return _Verdict(
        winner=_preferred(ties, objective), best=best, ordered=tuple(ordered), ties=tuple(ties), objective=objective
    )


def _is_tie(found: Evaluated, best: Evaluated, objective: Objective) -> bool:
    """Whether a prediction cannot tell them apart by what the objective compares."""
    mine, theirs = _compared(found, objective), _compared(best, objective)
    if objective == "fewest_gpus" and found.plan.cluster.num_gpus != best.plan.cluster.num_gpus:
        return False
    fraction = min(MAX_TIE_FRACTION, _half_band_fraction(best.prediction, objective))
    return mine <= theirs * (1 + fraction)


def _compared(found: Evaluated, objective: Objective) -> float:
    """The figure that is predicted: among plans with equally many GPUs, the time."""
    return found.prediction.time.step_s if objective == "fewest_gpus" else objective_value(found, objective)


def _preferred(ties: Sequence[Evaluated], objective: Objective) -> Evaluated:
    """Of the ties that fit safely, those that move least to the host; of these, those with the fewest axes; of these,
    the least model parallel of the best.

    Where memory is the objective, the ties are first thinned to those that tie with the fastest of them. Among equally
    many axes, shard groups that fill nodes evenly come before those that straddle them.
    """
    left = _least(ties, lambda found: _is_borderline(found.prediction))
    if objective == "memory":
        fastest = min(left, key=lambda found: found.prediction.time.step_s)
        left = [found for found in left if _is_tie(found, fastest, "step_time")]
    left = _least(left, lambda found: host_moves(found.plan))
    left = _least(left, lambda found: num_axes(found.plan.layout))
    left = _least(left, lambda found: straddles_nodes(found.plan))
    limit = (1 + SAME_FRACTION) * min(_compared(found, objective) for found in left)
    close = [found for found in left if _compared(found, objective) <= limit]
    return min(close, key=lambda found: simplicity(found.plan.layout))


def _least(found: Sequence[Evaluated], figure: Callable[[Evaluated], int]) -> list[Evaluated]:
    least = min(figure(candidate) for candidate in found)
    return [candidate for candidate in found if figure(candidate) == least]


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

"""How many GPUs, and which: the best layout on every cluster of a sweep, compared by one objective."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from shardwise.errors import ClusterError, ShardwiseError
from shardwise.layout import Layout
from shardwise.plan import Plan
from shardwise.search.bounds import SearchBounds
from shardwise.search.closest import more_gpus, what_it_lacks
from shardwise.search.evaluation import Evaluated
from shardwise.search.nearest import nearest_plan
from shardwise.search.one_pass import Found, find
from shardwise.search.ranking import rank
from shardwise.search.records import Objective, RankedPlan, TargetChange
from shardwise.search.shown import with_all_stages
from shardwise.search.simplicity import MAX_TIE_FRACTION
from shardwise.search.targets import (
    looser_targets,
    meeting,
    meets,
    nearest_meeting,
    require_countable,
    run_cost,
    target_change,
)
from shardwise.units import Dollars, format_percent, format_usd

__all__ = ["SweepResult", "SweepRow", "sweep", "sweep_objective"]

MAX_PREDICTIONS, FEW_PREDICTIONS = 8, 2
"""Plans predicted at most for a cluster that was asked about, and for one that the sweep proposes."""
MILLION = 1e6
MAX_TYPES_GROWN = 4
"""Types of GPU of which other sizes are tried when none of the sizes will do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepRow:
    """One cluster and the best layout on it."""

    question: Plan
    best: RankedPlan | None
    """``None`` when nothing fits or no layout is valid."""
    problem: str
    """Why there is no plan, or why it does not count; empty otherwise."""
    meets_targets: bool
    is_on_front: bool = False
    """Whether no other cluster is both faster and cheaper."""
    is_tie: bool = False
    """Whether the difference to the best is inside the error of a prediction."""

    @property
    def usd_per_million_tokens(self) -> Dollars | None:
        """Billed where the run's tokens are known, of the steps alone otherwise; ``None`` without a plan or a price."""
        if self.best is None:
            return None
        running, cost = self.best.prediction.running_cost, self.best.prediction.cost
        if cost is not None:
            return None if cost.usd is None else cost.usd / cost.tokens * MILLION
        return None if running is None else running.usd_per_million_tokens

    @property
    def cost_times_time(self) -> float:
        """Dollars for a million tokens times the seconds of a step; infinite without a plan or a price."""
        step_s, _, usd = _figures(self)
        return step_s * usd


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepResult:
    """Every cluster in the order that was asked, and the recommended one."""

    objective: Objective
    bounds: SearchBounds
    rows: tuple[SweepRow, ...]
    recommended: SweepRow | None
    """``None`` when no cluster has a plan that meets what was asked."""
    why: str
    changes: tuple[TargetChange, ...]
    """When no plan meets the targets: the nearest that are met."""
    assumptions: tuple[str, ...] = ()


def sweep_objective(bounds: SearchBounds) -> Objective:
    """The default objective: lowest cost with a deadline, shortest step with a budget, else the product of both.

    Cost times time is smallest where the front of both bends: from there on, a per cent of time costs more than a per
    cent of money.
    """
    if bounds.deadline_days is not None:
        return "cost"
    return "step_time" if bounds.budget_usd is not None else "cost_and_time"


def sweep(
    questions: Sequence[Plan],
    *,
    bounds: SearchBounds,
    objective: Objective,
    assumptions: tuple[str, ...] = (),
) -> SweepResult:
    """The best layout on each cluster, with the same model, batch and tokens on all of them.

    Args:
        questions: plans whose layouts are ignored, one a cluster.
        bounds: axes that are pinned or limited, the deadline and the budget.
        objective: what to make small over all clusters.
        assumptions: sentences to carry along.

    Raises:
        ClusterError: no clusters are given.
    """
    if not questions:
        raise ClusterError("no cluster has any of these sizes", code="search-bounds", fix="write --gpus 8..512")
    few = replace(bounds, max_plans=1, max_predictions=min(bounds.max_predictions, MAX_PREDICTIONS))
    rows = tuple(_row(question, few, objective) for question in questions)
    rows = tuple(replace(row, is_on_front=_is_on_front(row, rows)) for row in rows)
    counted = [row for row in rows if row.meets_targets]
    if not counted:
        why, changes = _nothing_meets(rows, bounds)
        return SweepResult(
            objective=objective,
            bounds=bounds,
            rows=rows,
            recommended=None,
            why=why,
            changes=changes,
            assumptions=assumptions,
        )
    best = min(counted, key=lambda row: _figure(row, objective))
    ties = [row for row in counted if _is_tie(row, best, objective)]
    winner = min(ties, key=lambda row: _among_ties(row, bounds, objective))
    marked = tuple(replace(row, is_tie=any(row is tie for tie in ties)) for row in rows)
    return SweepResult(
        objective=objective,
        bounds=bounds,
        rows=marked,
        recommended=next(new for new, old in zip(marked, rows, strict=True) if old is winner),
        why=_why(winner, best, objective, bounds, num_counted=len(counted), num_asked=len(rows))
        + _late(winner, bounds),
        changes=(),
        assumptions=assumptions,
    )


def _row(question: Plan, bounds: SearchBounds, objective: Objective) -> SweepRow:
    """One cluster searched; a question that a rule excludes is a row with its reason."""
    try:
        require_countable(question, bounds)
        found = find(question, bounds, objective="memory" if objective == "memory" else "step_time")
    except ShardwiseError as error:
        return _empty(question, error.message)
    fitting = found.evaluation.fitting
    ranked = with_all_stages(
        rank(meeting(fitting, bounds) or fitting, objective="memory" if objective == "memory" else "step_time", limit=1)
    )
    if not ranked:
        return _empty(question, _what_lacks(found, question, bounds))
    best = ranked[0]
    does_meet = meets(best.prediction, bounds)
    return SweepRow(
        question=question,
        best=best,
        problem="" if does_meet else f"misses the {_targets(bounds, 'or')}",
        meets_targets=does_meet,
    )


def _what_lacks(found: Found, question: Plan, bounds: SearchBounds) -> str:
    """Why a cluster has no plan: the memory its closest layout lacks, or the rule that most layouts break."""
    closest = nearest_plan(question, bounds, found)
    uneven = ""
    if _is_shared_unevenly(question):
        size, num_gpus = _batch_of(question), question.cluster.num_gpus
        uneven = f"{size:,} sequences are no multiple of {num_gpus:,} GPUs, so they cannot all read different ones"
    if closest is not None:
        return f"too big: the closest layout lacks {what_it_lacks(closest[1])}{uneven and '; '}{uneven}"
    most = found.rejected[0]
    return f"{uneven}{uneven and '; '}every layout breaks a rule, most often {most.rule}: {most.example}"


def _is_shared_unevenly(question: Plan) -> bool:
    return _batch_of(question) % question.cluster.num_gpus > 0


def _batch_of(question: Plan) -> int:
    """Sequences per step, whatever layout the question happens to carry."""
    return replace(question, layout=Layout()).global_batch_size


def _empty(question: Plan, problem: str) -> SweepRow:
    return SweepRow(question=question, best=None, problem=problem, meets_targets=False)


def _figures(row: SweepRow) -> tuple[float, float, float]:
    """Time, memory and cost of a row with a plan; cost is infinite where no price is known."""
    if row.best is None:
        return (float("inf"),) * 3
    usd = float("inf") if row.usd_per_million_tokens is None else row.usd_per_million_tokens
    return (row.best.prediction.time.step_s, float(row.best.prediction.memory.needed_bytes), usd)


def _time_and_cost(row: SweepRow) -> tuple[float, float]:
    step_s, _, usd = _figures(row)
    return step_s, usd


def _is_on_front(row: SweepRow, rows: Sequence[SweepRow]) -> bool:
    """Whether no other cluster is both faster and cheaper; memory that is left over is worth nothing to a buyer."""
    mine = _time_and_cost(row)
    others = [_time_and_cost(other) for other in rows]
    return row.best is not None and not any(
        other != mine and all(theirs <= own for theirs, own in zip(other, mine, strict=True)) for other in others
    )


def _figure(row: SweepRow, objective: Objective) -> tuple[float, ...]:
    step_s, needed_bytes, usd = _figures(row)
    num_gpus = float(row.question.cluster.num_gpus)
    order: dict[Objective, tuple[float, ...]] = {
        "step_time": (step_s, num_gpus),
        "cost": (usd, num_gpus * step_s),
        "cost_and_time": (row.cost_times_time, num_gpus * step_s**2),
        "memory": (needed_bytes, step_s),
        "fewest_gpus": (num_gpus, usd, step_s),
    }
    return order[objective]


def _is_tie(row: SweepRow, best: SweepRow, objective: Objective) -> bool:
    """Within the error of the prediction of the first figure; numbers of GPUs have none."""
    if objective in ("fewest_gpus", "cost_and_time"):
        return _figure(row, objective) == _figure(best, objective)
    return _figure(row, objective)[0] <= (1 + MAX_TIE_FRACTION) * _figure(best, objective)[0]


def _among_ties(row: SweepRow, bounds: SearchBounds, objective: Objective) -> tuple[float, ...]:
    """Order of clusters that tie: safe memory, then a deadline met at the band's slow end, then the fewest GPUs."""
    is_borderline = row.best is not None and row.best.prediction.memory.is_borderline
    return (is_borderline, bool(_late(row, bounds)), row.question.cluster.num_gpus, *_figure(row, objective))


def _latest_days(row: SweepRow, bounds: SearchBounds) -> float | None:
    """Days at the slow end of the band of its step time, where they are more than the deadline."""
    cost = row.best.prediction.cost if row.best is not None else None
    speed = cost.rate_sensitivity if cost is not None else None
    if cost is None or speed is None or bounds.deadline_days is None:
        return None
    latest_days = cost.days * speed.high_gpu_hours / cost.gpu_hours
    return latest_days if latest_days > bounds.deadline_days else None


def _late(winner: SweepRow, bounds: SearchBounds) -> str:
    """A sentence where the deadline is met by the predicted step and missed by the slow end of its band."""
    latest_days = _latest_days(winner, bounds)
    if latest_days is None:
        return ""
    return f" The deadline lies inside the band of its step time, which reaches to {latest_days:.1f} days."


def _task(bounds: SearchBounds) -> str:
    """A clause on what the compared clusters can do, by the targets of the run where there are any.

    >>> _task(SearchBounds()), _task(SearchBounds(deadline_days=20, budget_usd=1e6))
    ('that can do this', 'whose run takes at most 20 days and at most $1,000,000')
    """
    most = [
        *([f"at most {bounds.deadline_days:.4g} days"] if bounds.deadline_days is not None else []),
        *([f"at most {format_usd(bounds.budget_usd)}"] if bounds.budget_usd is not None else []),
    ]
    return f"whose run takes {' and '.join(most)}" if most else "that can do this"


def _targets(bounds: SearchBounds, word: str) -> str:
    """The targets that were given.

    >>> _targets(SearchBounds(budget_usd=1e6), "and")
    'budget'
    """
    given = {"deadline": bounds.deadline_days, "budget": bounds.budget_usd}
    return f" {word} the ".join(name for name, target in given.items() if target is not None)


def _why_not(best: SweepRow, winner: SweepRow, bounds: SearchBounds) -> str:
    """Why the best of the clusters that tie is not the winner: the first thing in which they differ."""
    if best.best is not None and winner.best is not None:
        if best.best.prediction.memory.is_borderline and not winner.best.prediction.memory.is_borderline:
            return "whose memory is borderline"
        latest = _latest_days(best, bounds)
        if latest is not None and _latest_days(winner, bounds) is None:
            return f"whose band of step time reaches to {latest:.1f} days, past the deadline"
    return "which is no safer"


def _why(
    winner: SweepRow, best: SweepRow, objective: Objective, bounds: SearchBounds, *, num_counted: int, num_asked: int
) -> str:
    task = _task(bounds)
    mine, gpu = winner.question.cluster.num_gpus, winner.question.cluster.gpu.id
    if num_counted == 1:
        among = f"the only one of {num_asked} clusters {task}" if num_asked > 1 else "no other was asked for"
        return f"{mine:,} {gpu}: {among}."
    words = {"step_time": "fastest", "cost": "cheapest", "memory": "smallest", "fewest_gpus": "fewest GPUs"}
    if objective == "cost_and_time":
        return (
            f"{mine:,} {gpu} have the least cost times time of {num_counted} clusters {task}: any other adds "
            "more per cent to one than it takes from the other; --deadline-days or --budget-usd choose otherwise."
        )
    if objective == "fewest_gpus":
        return f"{mine:,} {gpu} are the fewest GPUs, of {num_counted} clusters {task}, and the cheapest such."
    if winner is best:
        return f"{mine:,} {gpu}: the {words[objective]} of {num_counted} clusters {task}."
    ratio = _figure(winner, objective)[0] / _figure(best, objective)[0] - 1
    other = f"{best.question.cluster.num_gpus:,} {best.question.cluster.gpu.id}"
    return (
        f"{mine:,} {gpu}: {format_percent(ratio)} from the {words[objective]}, inside the error of a prediction: "
        f"{other}, {_why_not(best, winner, bounds)}. Of the clusters within {format_percent(MAX_TIE_FRACTION)} and as "
        "safe it has the fewest GPUs."
    )


def _nothing_meets(rows: Sequence[SweepRow], bounds: SearchBounds) -> tuple[str, tuple[TargetChange, ...]]:
    """Why no cluster is recommended, and the nearest targets and sizes with which one is."""
    found = [
        (row.question, Evaluated(family=(), plan=row.best.plan, prediction=row.best.prediction))
        for row in sorted(rows, key=lambda row: _figures(row)[0])
        if row.best is not None
    ]
    if not found:
        return _nothing_fits(rows, bounds), ()
    changes = list(looser_targets(found[0][1], bounds))
    priced = [best for _, best in found if run_cost(best.prediction).usd is not None]
    if priced and bounds.budget_usd is not None:
        cheapest = min(priced, key=lambda best: run_cost(best.prediction).usd or 0.0)
        changes += [change for change in looser_targets(cheapest, bounds) if change not in changes]
    changes += _other_sizes([question for question, _ in found], bounds)
    return f"No plan: no cluster of these meets the {_targets(bounds, 'and')}.", tuple(changes)


def _other_sizes(fastest_first: Sequence[Plan], bounds: SearchBounds) -> Iterator[TargetChange]:
    """The nearest number of GPUs that meets the targets, for each GPU type, starting at the type's fastest cluster."""
    if any(target is not None and target <= 0 for target in (bounds.deadline_days, bounds.budget_usd)):
        return
    for question in _one_of_each_type(fastest_first):
        found = nearest_meeting(question, bounds)
        if found is not None:
            cluster = found.plan.cluster
            yield target_change(f"gpus={cluster.num_gpus}", found, caution=cluster.gpu.id)


def _nothing_fits(rows: Sequence[SweepRow], bounds: SearchBounds) -> str:
    """That no size of any type holds the model, and a size of each that does."""
    batch, such = "", ""
    if any(_is_shared_unevenly(row.question) for row in rows):
        batch = "a batch that is a multiple of their GPUs, or "
    largest_first = sorted((row.question for row in rows), key=lambda question: -question.cluster.num_gpus)
    few = replace(bounds, max_predictions=FEW_PREDICTIONS)
    grown = (more_gpus(question, few) for question in _one_of_each_type(largest_first))
    found = [hypothesis.question for hypothesis in grown if hypothesis is not None]
    if found:
        named = (f"{plan.cluster.num_gpus:,} {plan.cluster.gpu.id} ({_batch_of(plan):,} sequences)" for plan in found)
        such = f", such as {' or '.join(named)}"
    return f"No plan: on none of these clusters does anything fit. Give {batch}more or larger GPUs{such}."


def _one_of_each_type(questions: Iterable[Plan]) -> list[Plan]:
    """The first question about every type of GPU, of a few types."""
    firsts: dict[str, Plan] = {}
    for question in questions:
        firsts.setdefault(question.cluster.gpu.id, question)
    return list(firsts.values())[:MAX_TYPES_GROWN]

"""A deadline and a budget: which plans meet them and, when none does, the nearest change that is met."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import ceil, floor, log10

from shardwise.cluster import Cluster
from shardwise.errors import RecipeError, ShardwiseError
from shardwise.plan import Plan
from shardwise.predict.cost import TOKENS_FIX
from shardwise.prediction import CostPrediction, Prediction
from shardwise.rules.changes import changes_text
from shardwise.rules.token_batch import on_cluster
from shardwise.search.bounds import SearchBounds
from shardwise.search.clusters import bigger_gpus, size_change, with_gpu
from shardwise.search.evaluation import Evaluated
from shardwise.search.nearest_size import nearest_size
from shardwise.search.one_pass import find
from shardwise.search.records import MissedTargets, TargetChange
from shardwise.search.shown import of_all_stages
from shardwise.units import format_count, format_days, format_usd

__all__ = [
    "looser_targets",
    "meeting",
    "meets",
    "missed_targets",
    "nearest_meeting",
    "require_countable",
    "run_cost",
    "target_change",
]

FEW_PREDICTIONS = 6
MAX_FACTOR = 64
KEPT_DIGITS = 3
"""Figures to type next are rounded to so many digits, to the side that is met."""


def require_countable(question: Plan, bounds: SearchBounds) -> None:
    """Return when a deadline or budget that is given can be compared with a prediction.

    Raises:
        RecipeError: the run has no length, or its GPUs no price.
    """
    if not bounds.has_targets:
        return
    if question.recipe.tokens is None:
        raise RecipeError(
            "how long a run takes and what it costs depends on its tokens", code="cost-tokens", fix=TOKENS_FIX
        )
    if bounds.budget_usd is not None and question.cluster.price is None:
        raise RecipeError(
            f"no price of {question.cluster.gpu.id} is known, so nothing can be compared with a budget",
            code="search-price",
            fix="write usd_per_gpu_hour in the cluster of a plan file, or give --gpu-types "
            f"{question.cluster.gpu.id}=2.50 with --gpus {question.cluster.num_gpus}",
        )


def run_cost(prediction: Prediction) -> CostPrediction:
    """The cost of a prediction whose plan names its tokens.

    Raises:
        RecipeError: it names none.
    """
    if prediction.cost is None:
        raise RecipeError("the plan names no tokens", code="cost-tokens", fix=TOKENS_FIX)
    return prediction.cost


def meets(prediction: Prediction, bounds: SearchBounds) -> bool:
    """Whether a run ends by the deadline and within the budget."""
    if not bounds.has_targets:
        return True
    cost = run_cost(prediction)
    is_late = bounds.deadline_days is not None and cost.days > bounds.deadline_days
    is_dear = bounds.budget_usd is not None and (cost.usd is None or cost.usd > bounds.budget_usd)
    return not is_late and not is_dear


def meeting(fitting: Sequence[Evaluated], bounds: SearchBounds) -> tuple[Evaluated, ...]:
    """The plans that meet the deadline and the budget."""
    return tuple(found for found in fitting if meets(found.prediction, bounds))


def missed_targets(question: Plan, bounds: SearchBounds, fitting: Sequence[Evaluated]) -> MissedTargets:
    """The fastest plan, what it misses, and the nearest change of every input under which something is met."""
    best = min(fitting, key=lambda found: found.prediction.time.step_s)
    return MissedTargets(
        plan=best.plan,
        prediction=of_all_stages(best.plan, best.prediction),
        because=_what_is_missed(best.prediction, bounds),
        changes=(*looser_targets(best, bounds), *_other_clusters(question, bounds)),
    )


def _what_is_missed(prediction: Prediction, bounds: SearchBounds) -> str:
    cost, parts = run_cost(prediction), []
    deadline, budget = bounds.deadline_days, bounds.budget_usd
    if deadline is not None and deadline <= 0:
        parts.append(f"a deadline of {deadline:g} days lies in the past")
    elif deadline is not None and cost.days > deadline:
        parts.append(f"the fastest plan takes {format_days(cost.days)}, more than {format_days(deadline)}")
    if budget is not None and cost.usd is not None and cost.usd > budget:
        parts.append(f"the cheapest plan costs {format_usd(cost.usd)}, more than {format_usd(budget)}")
    return " and ".join(parts)


def looser_targets(best: Evaluated, bounds: SearchBounds) -> Iterator[TargetChange]:
    """The deadline, the budget and the tokens that one plan meets, each figure that has to change."""
    cost, words = run_cost(best.prediction), []
    share = 1.0
    if bounds.deadline_days is not None and cost.days > bounds.deadline_days:
        words.append(f"deadline_days={_rounded(cost.days, up=True):g}")
        share = min(share, bounds.deadline_days / cost.days)
    if bounds.budget_usd is not None and cost.usd is not None and cost.usd > bounds.budget_usd:
        words.append(f"budget_usd={_rounded(cost.usd, up=True):.0f}")
        share = min(share, bounds.budget_usd / cost.usd)
    yield target_change(" ".join(words), best, caution="the same cluster and run")
    if 0 < share < 1:
        tokens = _rounded(cost.tokens * share, up=False)
        scaled = replace(cost, days=cost.days * tokens / cost.tokens, usd=_scaled(cost.usd, tokens / cost.tokens))
        shorter = replace(best, prediction=replace(best.prediction, cost=scaled))
        yield target_change(f"tokens={format_count(tokens)}", shorter, caution="a shorter run")


def _scaled(usd: float | None, ratio: float) -> float | None:
    return None if usd is None else usd * ratio


def _rounded(value: float, *, up: bool) -> float:
    """Three digits, to one side."""
    power = 10.0 ** (floor(log10(value)) - KEPT_DIGITS + 1)
    return round((ceil if up else floor)(value / power) * power, 9)


def _other_clusters(question: Plan, bounds: SearchBounds) -> Iterator[TargetChange]:
    """The nearest number of GPUs and the nearest larger GPU on which a plan meets the targets."""
    if any(target is not None and target <= 0 for target in (bounds.deadline_days, bounds.budget_usd)):
        return
    nearest = nearest_meeting(question, bounds)
    if nearest is not None:
        cluster = nearest.plan.cluster
        yield target_change(
            changes_text(size_change(cluster, asked=question.cluster)), nearest, caution=f"{cluster.num_gpus:,} GPUs"
        )
    few = replace(bounds, max_predictions=FEW_PREDICTIONS)
    for gpu in bigger_gpus(question.cluster.gpu):
        other = with_gpu(question.cluster, gpu)
        found = None if other is None else _fastest_meeting(replace(question, cluster=other), few)
        if found is not None:
            yield target_change(f"gpu={gpu.id}", found, caution="other hardware")
            return


def nearest_meeting(question: Plan, bounds: SearchBounds) -> Evaluated | None:
    """The fastest plan on the nearest number of the same GPUs that meets the targets: more for a deadline, fewer for a
    budget alone."""
    few = replace(bounds, max_predictions=FEW_PREDICTIONS)

    def meeting_on(cluster: Cluster) -> Evaluated | None:
        try:
            return _fastest_meeting(on_cluster(question, cluster), few)
        except ShardwiseError:  # no degrees place so many GPUs
            return None

    grows = bounds.deadline_days is not None
    return nearest_size(question.cluster, answer=meeting_on, max_factor=MAX_FACTOR, grows=grows)


def _fastest_meeting(question: Plan, bounds: SearchBounds) -> Evaluated | None:
    fitting = meeting(find(question, bounds, is_brief=True).evaluation.fitting, bounds)
    return min(fitting, key=lambda found: found.prediction.time.step_s, default=None)


def target_change(words: str, found: Evaluated, *, caution: str) -> TargetChange:
    """A change as a record, with the days and dollars that a run of the plan found under it takes."""
    cost = run_cost(found.prediction)
    return TargetChange(change=words, plan=found.plan, days=cost.days, usd=cost.usd, caution=caution)

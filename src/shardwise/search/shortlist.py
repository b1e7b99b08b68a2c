"""Chooses the plans that the first screen shows beside the recommended one: the fastest, and others of other kinds."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TypeAlias

from shardwise.engines.table import ENGINES
from shardwise.plan import Plan
from shardwise.predict import predict
from shardwise.prediction import Prediction
from shardwise.rules import Changes, apply_changes, find_errors
from shardwise.search.price_list import asked_fraction
from shardwise.search.records import RankedPlan, SearchResult

__all__ = ["Beside", "Shortlist", "shortlist"]

MAX_ALTERNATIVES = 3
NEAR_RATIO = 1.5
"""Alternatives whose step is longer than this many times the recommended one come last."""
LEAST_SAVED_FRACTION = 0.02
"""A slower plan of the same parallelism is worth a line where it needs this much less memory."""
Feature: TypeAlias = tuple[bool | int | str, ...]
"""The values by which two plans count as the same kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """A plan that is shown beside the recommended one."""

    plan: Plan
    prediction: Prediction
    step_ratio: float
    """Step time of this plan over that of the recommended one."""
    asked_fraction: float = 0.0
    """Share of the recommended step time that the plan would have to save to be recommended instead."""
    why: str = ""
    """Why the search did not recommend it, in terms of speed; empty where memory was the objective, and
    for a variant that the search did not rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortlist:
    """The few plans of an answer that somebody compares first."""

    recommended: RankedPlan
    fastest: Beside | None
    """``None`` where the recommended plan is the fastest that was found."""
    alternatives: tuple[Beside, ...]
    """Neither of both; the fastest first."""

    @property
    def named(self) -> Mapping[str, Plan]:
        """The plans under the names by which they are picked: ``fastest``, and the alternatives by number."""
        fastest = self.recommended.plan if self.fastest is None else self.fastest.plan
        numbered = {str(number): one.plan for number, one in enumerate(self.alternatives, start=1)}
        return {"fastest": fastest, **numbered}


def shortlist(result: SearchResult) -> Shortlist | None:
    """The recommended plan, the fastest, and at most three that differ in kind; ``None`` where no plan was found.

    Plans of other kinds of parallelism come before variants of the same kind, and both before plans at the edge of the
    memory. Where the answer holds fewer than three, variants of the recommended
    plan are predicted: other recomputation, then other micro-batches. Much slower plans come last.
    """
    if not result.plans:
        return None
    recommended, by_memory = result.plans[0], result.objective == "memory"
    found = [
        replace(_beside(ranked.plan, ranked.prediction, recommended), why="" if by_memory else ranked.why)
        for ranked in (*result.plans, *result.pareto)
    ]
    quickest = min(found, key=lambda one: one.prediction.time.step_s)
    fastest = quickest if quickest.step_ratio < 1 else None
    taken = [recommended.plan] if fastest is None else [recommended.plan, fastest.plan]
    others = sorted(
        (one for one in found if one.plan not in taken and _helps(one, recommended)),
        key=lambda one: (one.prediction.memory.is_borderline, one.step_ratio),
    )
    near = [one for one in others if one.step_ratio <= NEAR_RATIO and not one.prediction.memory.is_borderline]
    chosen: list[Beside] = []
    _take(chosen, near, taken, _kind)
    _take(chosen, chain(near, _predicted_variants(result)), taken, _recomputed)
    _take(chosen, chain(near, _predicted_variants(result)), taken, _variant)
    _take(chosen, others, taken, _variant)
    return Shortlist(
        recommended=recommended,
        fastest=fastest,
        alternatives=tuple(sorted(chosen, key=lambda one: one.prediction.time.step_s)),
    )


def _beside(plan: Plan, prediction: Prediction, recommended: RankedPlan) -> Beside:
    ratio = prediction.time.step_s / recommended.prediction.time.step_s
    asked = asked_fraction(plan, beyond=recommended.plan)
    return Beside(plan=plan, prediction=prediction, step_ratio=ratio, asked_fraction=asked)


def _take(
    chosen: list[Beside], others: Iterable[Beside], taken: Sequence[Plan], feature: Callable[[Plan], Feature]
) -> None:
    """Choose plans with a feature that none before has, until there are enough; ``others`` are predicted as needed."""
    seen = {feature(plan) for plan in (*taken, *(one.plan for one in chosen))}
    left = iter(others)
    while len(chosen) < MAX_ALTERNATIVES and (one := next(left, None)) is not None:
        if feature(one.plan) not in seen:
            seen.add(feature(one.plan))
            chosen.append(one)


def _kind(plan: Plan) -> Feature:
    """The axes of parallelism in use, what data parallelism divides, and what moves to the host."""
    return (*_axes(plan), plan.recipe.offload, plan.recipe.activation_offload)


def _helps(one: Beside, recommended: RankedPlan) -> bool:
    """Whether somebody may want a plan: it divides the work otherwise, takes less time, or needs less memory."""
    needed, now = one.prediction.memory.needed_bytes, recommended.prediction.memory.needed_bytes
    is_other = _axes(one.plan) != _axes(recommended.plan)
    return is_other or one.step_ratio < 1 or needed < (1 - LEAST_SAVED_FRACTION) * now


def _axes(plan: Plan) -> Feature:
    """The axes of parallelism in use, and what data parallelism divides."""
    layout = plan.layout
    degrees = (layout.dp_replicate, layout.tp, layout.cp, layout.pp, layout.ep)
    return (*(degree > 1 for degree in degrees), layout.zero_stage if layout.dp_shard > 1 else 0)


def _recomputed(plan: Plan) -> Feature:
    return (*_kind(plan), plan.recipe.recompute)


def _variant(plan: Plan) -> Feature:
    return (*_kind(plan), plan.recipe.micro_batch_size, plan.recipe.recompute)


def _predicted_variants(result: SearchResult) -> Iterator[Beside]:
    """The recommended plan with other micro-batches and other recomputation that the bounds and the device allow."""
    recommended = result.plans[0]
    recipe = recommended.plan.recipe
    micro_batches = (2 * recipe.micro_batch_size, recipe.micro_batch_size // 2)
    modes = sorted(ENGINES[recommended.plan.engine].recomputes - {recipe.recompute})
    sizes: list[Changes] = [(("micro_batch_size", size),) for size in micro_batches if size]
    every: Changes = (("recompute_layers", None), ("recompute_modules", None))
    recomputed: list[Changes] = [(("recompute", mode), *every) for mode in modes]
    both = [(*size, *mode) for size in sizes for mode in recomputed]
    for changes in (*sizes, *recomputed, *both):
        plan = apply_changes(recommended.plan, changes)
        if not result.bounds.allows(changes) or find_errors(plan):
            continue
        prediction = predict(plan)
        one = _beside(plan, prediction, recommended)
        if prediction.fits and _helps(one, recommended):
            yield one

"""Changes of a question that cost nothing and make its answer faster: compiled blocks, and a batch that GPUs share."""

from collections.abc import Iterator
from dataclasses import replace
from math import gcd

from shardwise.engines.table import ENGINES
from shardwise.errors import ShardwiseError
from shardwise.plan import Plan
from shardwise.predict import predict
from shardwise.rules import find_errors
from shardwise.rules.degrees import divisors
from shardwise.search.bounds import SearchBounds
from shardwise.search.one_pass import find
from shardwise.search.records import RankedPlan

__all__ = ["offers"]

LEAST_GAIN_FRACTION = 0.03
"""A change that brings less is not worth a line."""
MAX_BATCH_CHANGE = 0.10
FEW_PREDICTIONS = 3


def offers(question: Plan, now: RankedPlan, *, limits: SearchBounds) -> Iterator[tuple[str, Plan]]:
    """Questions with one change whose answer is faster, each with the change as it is typed.

    Args:
        question: what was asked, with its batch.
        now: the recommended plan.
        limits: the bounds of its search.
    """
    yield from _compiled(question, now)
    yield from _shared_batch(question, now, limits)


def _compiled(question: Plan, now: RankedPlan) -> Iterator[tuple[str, Plan]]:
    """Compiled blocks, where the recommended plan is faster with them."""
    if question.recipe.compile or not ENGINES[question.engine].has_compile_switch:
        return
    compiled = replace(now.plan, recipe=replace(now.plan.recipe, compile=True))
    if find_errors(compiled):
        return
    if predict(compiled).time.step_s <= (1 - LEAST_GAIN_FRACTION) * now.prediction.time.step_s:
        yield "compile=true", replace(question, recipe=replace(question.recipe, compile=True))


def _shared_batch(question: Plan, now: RankedPlan, limits: SearchBounds) -> Iterator[tuple[str, Plan]]:
    """A batch within 10 % that more of the GPUs can share, where its fastest plan trains more tokens a second."""
    size = _nearest_shared(question.global_batch_size, question.cluster.num_gpus)
    if size is None:
        return
    changed = replace(question, recipe=replace(question.recipe, global_batch_size=size))
    few = replace(limits, max_predictions=FEW_PREDICTIONS)
    try:
        fitting = find(changed, few, is_brief=True).evaluation.fitting
    except ShardwiseError:  # a pinned micro-batch or layout does not divide the other batch
        return
    sequences_per_s = max((size / found.prediction.time.step_s for found in fitting), default=0.0)
    now_per_s = question.global_batch_size / now.prediction.time.step_s
    if sequences_per_s * (1 - LEAST_GAIN_FRACTION) >= now_per_s:
        yield f"global_batch_size={size}", changed


def _nearest_shared(size: int, num_gpus: int) -> int | None:
    """The nearest batch that the largest possible divisor of the GPUs divides; ``None`` where none divides it better.

    >>> _nearest_shared(255, 32), _nearest_shared(256, 32), _nearest_shared(100, 16)
    (256, None, 96)
    """
    for divisor in reversed(divisors(num_gpus)):
        if divisor <= gcd(size, num_gpus):
            return None
        nearest = max(1, round(size / divisor)) * divisor
        if abs(nearest - size) <= MAX_BATCH_CHANGE * size:
            return nearest
    return None

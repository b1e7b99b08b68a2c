"""When every layout breaks a rule, or those that keep them are too big: the nearest changes that have a plan."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from math import prod

from shardwise.errors import ShardwiseError
from shardwise.plan import Plan
from shardwise.rules.token_batch import NEAR_BATCH_FRACTION
from shardwise.search.bounds import SearchBounds
from shardwise.search.clusters import at_most
from shardwise.search.hypotheses import Hypothesis, first_that_helps, free_axes, mended_rules
from shardwise.search.records import Objective, Rejection, Relief

__all__ = ["batch_repair", "repairs"]

FEW_PREDICTIONS = 4
MAX_TRIED_SIZES = 6
MAX_TRIED_NEAR = 2
"""Batches on either side of one that only layouts too big for the device divide; further ones hold no less."""
BATCH_AXES = ("dp_replicate", "dp_shard", "micro_batch_size")


def repairs(
    question: Plan, bounds: SearchBounds, *, rejected: Sequence[Rejection] = (), objective: Objective = "step_time"
) -> tuple[Relief, ...]:
    """Changes of a question without a plan that give it one: the first that helps among fixes of broken rules, other
    batches, fewer GPUs and freed axes each. A batch close to the one that was asked for stands first: it changes least
    of what is trained."""
    few = replace(bounds, max_predictions=FEW_PREDICTIONS)
    kinds = (
        mended_rules(question, few, rejected),
        _other_batches(question, few),
        _fewer_gpus(question, few),
        free_axes(question, few),
    )
    firsts = (first_that_helps(kind, objective=objective) for kind in kinds)
    helpful = (relief for relief in firsts if relief is not None)
    return tuple(sorted(helpful, key=lambda relief: not _is_near_batch(relief, question)))


def _is_near_batch(relief: Relief, question: Plan) -> bool:
    size, asked = relief.plan.global_batch_size, question.global_batch_size
    return 0 < abs(size - asked) <= NEAR_BATCH_FRACTION * asked


def batch_repair(question: Plan, bounds: SearchBounds, *, objective: Objective = "step_time") -> Relief | None:
    """The nearest batch that has a plan, where the ranks do not share the one that is asked for."""
    if question.global_batch_size % _sharing_ranks(question, bounds) == 0:
        return None
    few = replace(bounds, max_predictions=FEW_PREDICTIONS)
    return first_that_helps(islice(_other_batches(question, few), MAX_TRIED_NEAR), objective=objective)


def _other_batches(question: Plan, bounds: SearchBounds) -> Iterator[Hypothesis]:
    """Batches that the pinned ranks share, or all GPUs where nothing is pinned: the nearest above, then below."""
    unit, size = _sharing_ranks(question, bounds), question.global_batch_size
    above = -(-size // unit) * unit
    sizes = sorted(
        {above + step * unit for step in range(MAX_TRIED_SIZES)} | {above - unit}, key=lambda it: abs(it - size)
    )
    for other in sizes:
        if other > 0 and other != size:
            asked = replace(question, recipe=replace(question.recipe, global_batch_size=other))
            yield Hypothesis(change=f"global_batch_size={other}", question=asked, bounds=bounds)


def _sharing_ranks(question: Plan, bounds: SearchBounds) -> int:
    """Sequences of a round of the pinned ranks, or of all GPUs where nothing is pinned."""
    pins = [limit.low for axis in BATCH_AXES if (limit := getattr(bounds, axis)) is not None]
    return prod(pins) if pins else question.cluster.num_gpus


def _fewer_gpus(question: Plan, bounds: SearchBounds) -> Iterator[Hypothesis]:
    """Halves of the cluster, the largest first."""
    num_gpus = question.cluster.num_gpus // 2
    while num_gpus:
        try:
            cluster = at_most(question.cluster, num_gpus)
        except ShardwiseError:  # a server that is sold whole
            return
        smaller = replace(question, cluster=cluster)
        yield Hypothesis(change=f"max_gpus={cluster.num_gpus}", question=smaller, bounds=bounds)
        num_gpus //= 2

"""When every layout breaks a rule, or those that keep them are too big: the nearest changes that have a plan."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from math import prod

from shardwise.errors import ShardwiseError
from shardwise.plan import Plan
from shardwise.search.bounds import SearchBounds
from shardwise.search.clusters import at_most
from shardwise.search.one_pass import find
from shardwise.search.records import Relief

__all__ = ["batch_repair", "repairs"]

FEW_PREDICTIONS = 4
MAX_TRIED_SIZES = 6
MAX_TRIED_NEAR = 2
"""Batches on either side of one that only layouts too big for the device divide; further ones hold no less."""
BATCH_AXES = ("dp_replicate", "dp_shard", "micro_batch_size")


def repairs(question: Plan, bounds: SearchBounds) -> tuple[Relief, ...]:
    """A larger or smaller batch, fewer GPUs, free axes: the first of each kind that has a plan."""
    few = replace(bounds, max_predictions=FEW_PREDICTIONS)
    kinds = (_other_batches(question, few), _fewer_gpus(question), _free_axes(question, few))
    found: list[Relief] = []
    for kind in kinds:
        relief = next(
            (relief for change, asked, limits in kind if (relief := _try(change, asked, limits or few))), None
        )
        if relief is not None:
            found.append(relief)
    return tuple(found)


def batch_repair(question: Plan, bounds: SearchBounds) -> Relief | None:
    """The nearest batch that has a plan, where the ranks do not share the one that is asked for."""
    if question.global_batch_size % _sharing_ranks(question, bounds) == 0:
        return None
    few = replace(bounds, max_predictions=FEW_PREDICTIONS)
    near = islice(_other_batches(question, few), MAX_TRIED_NEAR)
    return next((relief for change, asked, _ in near if (relief := _try(change, asked, few))), None)


Attempt = tuple[str, Plan, SearchBounds | None]


def _other_batches(question: Plan, bounds: SearchBounds) -> Iterator[Attempt]:
    """Batches that the pinned ranks share, or all GPUs where nothing is pinned: the nearest above, then below."""
    unit, size = _sharing_ranks(question, bounds), question.global_batch_size
    above = -(-size // unit) * unit
    sizes = sorted(
        {above + step * unit for step in range(MAX_TRIED_SIZES)} | {above - unit}, key=lambda it: abs(it - size)
    )
    for other in sizes:
        if other > 0 and other != size:
            yield (
                f"global_batch_size={other}",
                replace(question, recipe=replace(question.recipe, global_batch_size=other)),
                None,
            )


def _sharing_ranks(question: Plan, bounds: SearchBounds) -> int:
    """Sequences of a round of the pinned ranks, or of all GPUs where nothing is pinned."""
    pins = [limit.low for axis in BATCH_AXES if (limit := getattr(bounds, axis)) is not None]
    return prod(pins) if pins else question.cluster.num_gpus


def _fewer_gpus(question: Plan) -> Iterator[Attempt]:
    """Halves of the cluster, the largest first."""
    num_gpus = question.cluster.num_gpus // 2
    while num_gpus:
        try:
            cluster = at_most(question.cluster, num_gpus)
        except ShardwiseError:  # a server that is sold whole
            return
        yield f"max_gpus={cluster.num_gpus}", replace(question, cluster=cluster), None
        num_gpus //= 2


def _free_axes(question: Plan, bounds: SearchBounds) -> Iterator[Attempt]:
    """The same question without the user's bounds on axes."""
    if bounds != bounds.without_axes:
        yield "no bounds on the axes", question, bounds.without_axes


def _try(change: str, question: Plan, bounds: SearchBounds) -> Relief | None:
    """The fastest plan of a changed question; ``None`` when it has none."""
    try:
        fitting = find(question, bounds, is_brief=True).evaluation.fitting
    except ShardwiseError:  # the bounds leave no layout of the smaller cluster
        return None
    if not fitting:
        return None
    best = min(fitting, key=lambda found: found.prediction.time.step_s)
    return Relief(
        change=change,
        plan=best.plan,
        device_used_bytes=best.prediction.memory.worst.device_used_bytes,
        needed_bytes=best.prediction.memory.needed_bytes,
        step_s=best.prediction.time.step_s,
    )

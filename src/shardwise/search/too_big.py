"""Ways to make a plan fit that does not: a change of its recipe, or how many times further it has to be divided."""

from collections.abc import Iterator
from math import ceil

from shardwise.engines.table import ENGINES
from shardwise.plan import Plan
from shardwise.predict.memory import predict_fullest_memory
from shardwise.prediction import MemoryPrediction
from shardwise.recipe import Offload
from shardwise.rules import Changes, find_errors
from shardwise.rules.changes import changes_text
from shardwise.rules.defaults import type_changes
from shardwise.search.candidates import ZERO_STAGES
from shardwise.units import format_gib

__all__ = ["way_out"]

ROOMIER_RATIO = 2
"""Hosts are to be had with up to so many times the memory."""
MOVING: tuple[Offload, ...] = ("optimizer", "parameters")
"""Values of ``offload`` to try, from the one with less waiting to the one that frees more memory."""


def way_out(plan: Plan, memory: MemoryPrediction) -> str:
    """The first change of the recipe with which a plan is predicted to fit; without one, to divide it further.

    Args:
        plan: it does not fit.
        memory: what it was predicted to need.
    """
    least_bytes = memory.needed_bytes
    for words, tried in _changed(plan):
        found = predict_fullest_memory(tried)
        if found.fits_device and found.fits_host:
            return f"set {words}"
        if found.fits_device and 1 < found.host_bytes_per_node / max(1, found.host_capacity_bytes) < ROOMIER_RATIO:
            return f"set {words}, on hosts with {format_gib(found.host_bytes_per_node)} of memory"
        if tried.recipe.offload == plan.recipe.offload:
            least_bytes = min(least_bytes, found.needed_bytes)
    ratio = max(2, ceil(least_bytes / memory.capacity_bytes))
    layout = plan.layout
    num_gpus = ratio * layout.tp * layout.pp * layout.state_shard_size
    more = f", which takes some {num_gpus:,} GPUs," if num_gpus > plan.cluster.num_gpus else ""
    return (
        f"no smaller batch, recomputation or offload is enough: divide it {ratio:,} times further (tp, pp, dp_shard "
        f"with zero_stage=3){more} or take GPUs with more memory"
    )


def _changed(plan: Plan) -> Iterator[tuple[str, Plan]]:
    """Changed plans that break no rule, with what to type; a change gets the lowest ZeRO stage that it takes.

    Where nothing is left to change, as in a plan that is fully recomputed already, no ZeRO stage is tried either.
    """
    seen: list[Changes] = [()]
    for changes in _ladder(plan):
        for stage in ZERO_STAGES[ZERO_STAGES.index(plan.layout.zero_stage) :]:
            typed, tried = type_changes(plan, (*changes, ("zero_stage", stage)))
            if typed in seen:
                break
            seen.append(typed)
            if not find_errors(tried):
                yield changes_text(typed), tried
                break


def _ladder(plan: Plan) -> Iterator[Changes]:
    """Changes of the recipe that hold less, in the order of what they cost."""
    recipe = plan.recipe
    everything: Changes = (("recompute", "full"), ("recompute_layers", None), ("recompute_modules", None))
    least: Changes = (("micro_batch_size", 1), *everything)
    if recipe.micro_batch_size > 1:
        yield (("micro_batch_size", recipe.micro_batch_size // 2),)
    yield everything
    yield least
    if recipe.offload == "none" and not plan.cluster.runs_on_cpu:
        yield from ((*least, ("offload", one)) for one in MOVING if one in ENGINES[plan.engine].offloads)

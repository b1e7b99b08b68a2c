"""Ways to make a plan fit that does not: a change of its recipe, or how many times further it has to be divided."""

from collections.abc import Iterator
from dataclasses import replace
from math import ceil

from shardwise.engines.table import ENGINES
from shardwise.plan import Plan
from shardwise.predict.memory import predict_fullest_memory
from shardwise.prediction import MemoryPrediction
from shardwise.recipe import Offload, Recipe
from shardwise.rules import find_errors
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
    """Plans of the recipes that break no rule; where one needs a higher ZeRO stage, of the lowest that it takes."""
    for words, recipe in _recipes(plan):
        for stage in ZERO_STAGES[ZERO_STAGES.index(plan.layout.zero_stage) :]:
            tried = replace(plan, recipe=recipe, layout=replace(plan.layout, zero_stage=stage))
            if not find_errors(tried):
                yield words if stage == plan.layout.zero_stage else f"{words} zero_stage={stage}", tried
                break


def _recipes(plan: Plan) -> Iterator[tuple[str, Recipe]]:
    """Recipes that hold less, in the order of what they cost, with the words to type."""
    recipe, offers = plan.recipe, ENGINES[plan.engine]
    small, small_words = recipe, ""
    if recipe.micro_batch_size > 1:
        half = recipe.micro_batch_size // 2
        yield f"micro_batch_size={half}", replace(recipe, micro_batch_size=half)
        small, small_words = replace(recipe, micro_batch_size=1), "micro_batch_size=1 "
    is_full = recipe.recompute == "full" and not recipe.recompute_layers
    full_words = small_words if is_full else f"{small_words}recompute=full "
    every = {"recompute": "full", "recompute_layers": None, "recompute_modules": None}
    full = replace(small, **every)  # type: ignore[arg-type]
    if not is_full:
        yield "recompute=full", replace(recipe, **every)  # type: ignore[arg-type]
        yield full_words.rstrip(), full
    frees = not plan.cluster.runs_on_cpu
    for offload in MOVING if frees and recipe.offload == "none" else ():
        if offload in offers.offloads:
            yield f"{full_words}offload={offload}", replace(full, offload=offload)

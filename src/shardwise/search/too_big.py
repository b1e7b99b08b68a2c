"""What would make a plan fit that does not: a change of its recipe, or how many times further it has to be divided."""

from collections.abc import Iterator
from dataclasses import replace
from math import ceil

from shardwise.plan import Plan
from shardwise.predict.memory import predict_fullest_memory
from shardwise.prediction import MemoryPrediction
from shardwise.recipe import Recipe
from shardwise.rules import OFFERS, find_errors

__all__ = ["way_out"]


def way_out(plan: Plan, memory: MemoryPrediction) -> str:
    """The first change of the recipe with which a plan is predicted to fit; without one, to divide it further.

    Args:
        plan: it does not fit.
        memory: what it was predicted to need.
    """
    least_bytes = memory.needed_bytes
    for words, recipe in _recipes(plan):
        tried = replace(plan, recipe=recipe)
        if find_errors(tried):
            continue
        found = predict_fullest_memory(tried)
        if found.fits_device and found.fits_host:
            return f"set {words}"
        if recipe.offload == plan.recipe.offload:
            least_bytes = min(least_bytes, found.needed_bytes)
    ratio = max(2, ceil(least_bytes / memory.capacity_bytes))
    layout = plan.layout
    num_gpus = ratio * layout.tp * layout.pp * layout.state_shard_size
    more = f", which takes some {num_gpus:,} GPUs," if num_gpus > plan.cluster.num_gpus else ""
    return (
        f"no smaller batch, recomputation or offload is enough: divide it {ratio:,} times further (tp, pp, dp_shard "
        f"with zero_stage=3){more} or take GPUs with more memory"
    )


def _recipes(plan: Plan) -> Iterator[tuple[str, Recipe]]:
    """Recipes that hold less, in the order of what they cost, with the words to type."""
    recipe, offers = plan.recipe, OFFERS[plan.engine]
    small, small_words = recipe, ""
    if recipe.micro_batch_size > 1:
        half = recipe.micro_batch_size // 2
        yield f"micro_batch_size={half}", replace(recipe, micro_batch_size=half)
        small, small_words = replace(recipe, micro_batch_size=1), "micro_batch_size=1 "
    full, full_words = replace(small, recompute="full", recompute_layers=None), f"{small_words}recompute=full "
    if recipe.recompute != "full" or recipe.recompute_layers:
        yield "recompute=full", replace(recipe, recompute="full", recompute_layers=None)
        yield full_words.rstrip(), full
    frees = not plan.cluster.runs_on_processors
    if frees and recipe.offload == "none" and "optimizer" in offers.offloads:
        yield f"{full_words}offload=optimizer", replace(full, offload="optimizer")

"""A plan whose memory band reaches beyond the device, with the fewest more blocks or modules recomputed that bring it
inside."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from math import ceil

from shardwise.plan import Plan
from shardwise.predict.memory import predict_fullest_memory
from shardwise.prediction import MemoryPrediction
from shardwise.recipe import Recompute, RecomputeModule
from shardwise.rules import find_errors

__all__ = ["safely_recomputed"]

DEPTHS: tuple[Recompute, ...] = ("none", "selective", "full")
"""Recompute modes, from the one that keeps most activations to the one that keeps least."""

PlanMemory = tuple[Plan, MemoryPrediction]


def safely_recomputed(
    plan: Plan,
    memory: MemoryPrediction,
    *,
    modes: Sequence[Recompute],
    module_sets: Sequence[tuple[RecomputeModule, ...]] = (),
) -> Iterator[PlanMemory]:
    """For each mode of recomputation: the plan with the fewest blocks of it that fits safely, with its memory, and the
    one with all blocks; and with the first set of modules with which it does.

    Args:
        plan: fits, at the edge of the device.
        memory: what it was predicted to need.
        modes: to recompute some blocks, out of those that may be used.
        module_sets: to recompute in every block, from the one that keeps most.
    """
    if plan.recipe.recompute != "full":
        made = (_recomputing_modules(plan, modules) for modules in _after(plan, module_sets))
        yield from islice((found for found in made if _is_safe(found) and not find_errors(found[0])), 1)
    depth = DEPTHS.index(plan.recipe.recompute)
    for mode in modes:
        if DEPTHS.index(mode) < max(1, depth):
            continue
        yield from (found for found in _fewest_and_every(plan, memory, mode) if not find_errors(found[0]))


def _fewest_and_every(plan: Plan, memory: MemoryPrediction, mode: Recompute) -> Iterator[PlanMemory]:
    """More blocks never need more, so the fewest that fit safely are found by halving, from where a straight line
    points and next to it. All blocks take longer, and are one choice less."""
    most = max(plan.layout.stage_layers or (-(-plan.model.num_hidden_layers // plan.layout.pp),))
    now = (plan.recipe.recompute_layers or most) if plan.recipe.recompute == mode else 0
    every = _recomputing(plan, mode, most, most)
    if now >= most or not _is_safe(every):
        return
    yield every
    share = (memory.needed_bytes - _safe_bytes(memory)) / max(1, memory.needed_bytes - every[1].needed_bytes)
    too_few, enough, found = now, most, every
    middle, steps = now + ceil(share * (most - now)), 0
    while enough - too_few > 1:
        middle = min(max(middle, too_few + 1), enough - 1)
        tried = _recomputing(plan, mode, middle, most)
        if _is_safe(tried):
            enough, found, beside = middle, tried, middle - 1
        else:
            too_few, beside = middle, middle + 1
        steps += 1
        middle = beside if steps < 3 else (too_few + enough) // 2
    if enough < most:
        yield found


def _after(plan: Plan, module_sets: Sequence[tuple[RecomputeModule, ...]]) -> Sequence[tuple[RecomputeModule, ...]]:
    """The sets that keep less than a plan's own."""
    own = plan.recipe.recompute_modules
    return module_sets[module_sets.index(own) + 1 :] if own in module_sets else module_sets


def _safe_bytes(memory: MemoryPrediction) -> float:
    return memory.capacity_bytes / memory.high_fraction


def _is_safe(found: PlanMemory) -> bool:
    memory = found[1]
    return memory.fits_device and memory.fits_host and not memory.is_borderline


def _recomputing(plan: Plan, mode: Recompute, layers: int, most: int) -> PlanMemory:
    """The plan with so many blocks of every stage recomputed, and what it needs."""
    modules = plan.recipe.recompute_modules if mode == "selective" else None
    some = layers if layers < most else None
    recipe = replace(plan.recipe, recompute=mode, recompute_layers=some, recompute_modules=modules)
    changed = replace(plan, recipe=recipe)
    return changed, predict_fullest_memory(changed)


def _recomputing_modules(plan: Plan, modules: tuple[RecomputeModule, ...]) -> PlanMemory:
    """The plan with some modules of every block recomputed, and what it needs."""
    recipe = replace(plan.recipe, recompute="selective", recompute_layers=None, recompute_modules=modules)
    changed = replace(plan, recipe=recipe)
    return changed, predict_fullest_memory(changed)

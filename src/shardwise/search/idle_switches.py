"""Takes back what a found plan recomputes or keeps on the host where that costs time and saves no memory."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from shardwise.plan import Plan
from shardwise.predict import predict
from shardwise.predict.memory import predict_fullest_memory
from shardwise.rules import find_errors
from shardwise.search.candidates import RECOMPUTES
from shardwise.search.evaluation import Evaluated
from shardwise.search.space import Space

__all__ = ["NOTHING_FRACTION", "without_idle_switches"]

NOTHING_FRACTION = 0.005
"""A switch that saves less of the memory than this saves nothing; ``explain`` calls the same share nothing."""


def without_idle_switches(fitting: Sequence[Evaluated], *, space: Space) -> tuple[Evaluated, ...]:
    """The plans that fit, each without the switches that it gains nothing by; plans that become equal stand once.

    A search predicts few variants of each set of degrees, so that the one without a switch need not be among them.

    Args:
        fitting: plans with their predictions.
        space: what was asked; a switch that is asked for stays.
    """
    found = {(bare.plan.layout, bare.plan.recipe): bare for bare in (_bare(one, space) for one in fitting)}
    return tuple(found.values())


def _bare(found: Evaluated, space: Space) -> Evaluated:
    for plan in _with_fewer_switches(found.plan, space):
        memory, now = predict_fullest_memory(plan), found.prediction.memory
        is_as_safe = memory.fits_device and memory.fits_host and (now.is_borderline or not memory.is_borderline)
        if not is_as_safe or memory.needed_bytes > (1 + NOTHING_FRACTION) * now.needed_bytes:
            continue
        prediction = predict(plan, memory=memory)
        if prediction.time.step_s <= found.prediction.time.step_s:
            return _bare(replace(found, plan=plan, prediction=prediction), space)
    return found


def _with_fewer_switches(plan: Plan, space: Space) -> Iterator[Plan]:
    """The plan with one switch less, for each that it has and the question leaves open."""
    recipe, layout = plan.recipe, plan.layout
    if recipe.recompute != "none" and RECOMPUTES.index("none") in space.recomputes:
        yield from _valid(replace(plan, recipe=replace(recipe, recompute="none", recompute_layers=None)))
    if recipe.offload != "none" and "none" in space.offloads:
        is_one_rank = layout.data_parallel_size * layout.cp == 1 and space.bounds.zero_stage is None
        kept = replace(layout, zero_stage=0, reshard_after_forward=True) if is_one_rank else layout
        yield from _valid(replace(plan, recipe=replace(recipe, offload="none"), layout=kept))
    if recipe.activation_offload and False in space.activation_offloads:
        yield from _valid(replace(plan, recipe=replace(recipe, activation_offload=False)))


def _valid(plan: Plan) -> Iterator[Plan]:
    if not find_errors(plan):
        yield plan

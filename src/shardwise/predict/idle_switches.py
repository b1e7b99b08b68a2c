"""Switches of a plan that take time and free no memory: recomputation and what is kept on the host."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from shardwise.plan import Plan
from shardwise.predict import predict
from shardwise.predict.memory import predict_fullest_memory
from shardwise.prediction import MemoryPrediction, Prediction
from shardwise.rules import Refusal, describe_changes, find_errors
from shardwise.rules.changes import changes_text
from shardwise.units import format_percent, format_seconds

__all__ = ["IDLE_SWITCH", "NOTHING_FRACTION", "Without", "idle_switches", "predicted_without", "without_switches"]

IDLE_SWITCH = "recipe-idle-switch"
NOTHING_FRACTION = 0.005
"""A switch that saves less of the memory than this saves nothing; one that costs less of the step costs nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Without:
    """A plan with one switch less."""

    name: str
    """The field of the recipe that is switched off."""
    off: str | bool
    plan: Plan


def without_switches(plan: Plan, *, keeps_stage: bool = False) -> Iterator[Without]:
    """The plan with one switch less, for each that it has and that another rule does not need.

    Args:
        plan: with any switches.
        keeps_stage: whether the ZeRO stage is asked for; a single rank has no other use for one than to offload.
    """
    recipe, layout = plan.recipe, plan.layout
    bare = replace(plan, recipe=replace(recipe, recompute="none", recompute_layers=None, recompute_modules=None))
    if recipe.recompute != "none" and not find_errors(bare):
        yield Without(name="recompute", off="none", plan=bare)
    is_one_rank = layout.data_parallel_size * layout.cp == 1 and not keeps_stage
    kept = replace(layout, zero_stage=0, reshard_after_forward=True) if is_one_rank else layout
    bare = replace(plan, recipe=replace(recipe, offload="none"), layout=kept)
    if recipe.offload != "none" and not find_errors(bare):
        yield Without(name="offload", off="none", plan=bare)
    bare = replace(plan, recipe=replace(recipe, activation_offload=False))
    if recipe.activation_offload and not find_errors(bare):
        yield Without(name="activation_offload", off=False, plan=bare)


def predicted_without(bare: Plan, now: MemoryPrediction) -> Prediction | None:
    """The prediction of a plan with one switch less; ``None`` where the switch saves memory."""
    memory = predict_fullest_memory(bare)
    fits, fitted = (found.fits_device and found.fits_host for found in (memory, now))
    is_as_safe = (fits or not fitted) and (now.is_borderline or not memory.is_borderline)
    if not is_as_safe or memory.needed_bytes > (1 + NOTHING_FRACTION) * now.needed_bytes:
        return None
    return predict(bare, memory=memory)


def idle_switches(plan: Plan, prediction: Prediction) -> Iterator[Refusal]:
    """A warning for each switch of a plan that costs time and saves nothing, with the value that it should have."""
    step_s = prediction.time.step_s
    for without in without_switches(plan):
        bare = predicted_without(without.plan, prediction.memory)
        if bare is None or bare.time.step_s > (1 - NOTHING_FRACTION) * step_s:
            continue
        cost_s, off = step_s - bare.time.step_s, ((without.name, without.off),)
        yield Refusal(
            rule=IDLE_SWITCH,
            message=f"{changes_text(((without.name, getattr(plan.recipe, without.name)),))} costs "
            f"{format_seconds(cost_s)} of a step ({format_percent(cost_s / step_s)}) and saves no memory on the "
            "fullest GPU",
            fix=describe_changes(off),
            severity="warning",
            neighbour=off,
        )

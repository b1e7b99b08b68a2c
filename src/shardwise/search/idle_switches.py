"""Takes back what a found plan recomputes or keeps on the host where that costs time and saves no memory."""

from collections.abc import Sequence
from dataclasses import replace

from shardwise.predict.idle_switches import Without, predicted_without, without_switches
from shardwise.search.candidates import RECOMPUTES
from shardwise.search.evaluation import Evaluated
from shardwise.search.space import Space

__all__ = ["without_idle_switches"]


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
    keeps_stage = space.bounds.zero_stage is not None
    for without in without_switches(found.plan, keeps_stage=keeps_stage):
        prediction = predicted_without(without.plan, found.prediction.memory) if _is_open(without, space) else None
        if prediction is not None and prediction.time.step_s <= found.prediction.time.step_s:
            return _bare(replace(found, plan=without.plan, prediction=prediction), space)
    return found


def _is_open(without: Without, space: Space) -> bool:
    """Whether the question leaves it open to switch something off."""
    if without.name == "recompute":
        return RECOMPUTES.index("none") in space.recomputes
    return without.off in (space.offloads if without.name == "offload" else space.activation_offloads)

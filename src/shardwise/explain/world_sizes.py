"""Tells how few GPUs hold a plan: by its states alone, and as predicted with states divided further."""

from math import ceil

from shardwise.explain.records import Finding, Quantity, VerifiedChange
from shardwise.explain.state_counts import counted_quantity, counted_states, states_sentence
from shardwise.explain.told import told
from shardwise.plan import Plan
from shardwise.prediction import FIT_VERBS, Prediction

__all__ = ["world_size_finding"]


def world_size_finding(plan: Plan, prediction: Prediction, *, enough: VerifiedChange | None = None) -> Finding:
    """How few GPUs could hold the states, and how many hold this plan.

    Args:
        plan: the plan that is explained.
        prediction: its prediction.
        enough: the change to more GPUs that makes it fit, where it does not and there is one.
    """
    states = counted_states(plan)
    capacity = prediction.memory.capacity_bytes
    fewest = ceil(states.total_bytes / capacity)
    numbers: tuple[Quantity, ...] = (
        counted_quantity("states", plan),
        told("capacity", prediction, "memory.capacity_bytes", "bytes"),
        Quantity(name="fewest GPUs for states", value=fewest, unit="count"),
    )
    claim = f"States alone need at least {fewest} of these GPUs"
    if prediction.fits:
        claim = f"States alone would need {fewest} of these GPUs; this plan uses {plan.layout.world_size}, and it "
        claim += FIT_VERBS[prediction.fit]
    elif enough is not None:
        num_gpus = enough.plan.cluster.num_gpus
        numbers = (*numbers, Quantity(name="GPUs that hold the plan", value=num_gpus, unit="count"))
        claim += f"; with {enough.edit} this plan {FIT_VERBS[enough.fit]} on {num_gpus:,}"
    return Finding(
        topic="world-size",
        claim=f"{claim}.",
        numbers=numbers,
        because=states_sentence(plan),
        suggestion="" if enough is None else enough.edit,
    )

"""Finds the fewest GPUs that hold a plan: by its states alone, and as predicted with states divided further."""

from collections.abc import Iterator
from dataclasses import replace
from math import ceil

from shardwise.explain.changes import verify
from shardwise.explain.edits import HARDWARE, Edit
from shardwise.explain.host import enough_host_gib
from shardwise.explain.records import Finding, Quantity, VerifiedChange
from shardwise.explain.state_counts import counted_quantity, counted_states, states_sentence
from shardwise.explain.told import told
from shardwise.plan import Plan
from shardwise.prediction import FIT_VERBS, Prediction
from shardwise.rules import find_errors
from shardwise.rules.changes import merge
from shardwise.rules.defaults import type_changes
from shardwise.search.clusters import (
    bigger_gpus,
    resized,
    size_change,
    with_fewer_gpus_per_node,
    with_gpu,
    with_host_memory,
)
from shardwise.units import format_gib

__all__ = ["hardware_changes", "smallest_world", "world_size_finding"]

GPU_FACTORS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
MAX_HARDWARE_CHANGES = 3


def world_size_finding(plan: Plan, prediction: Prediction, *, enough: VerifiedChange | None = None) -> Finding:
    """How few GPUs could hold the states, and how many hold this plan.

    Args:
        plan: the plan that is explained.
        prediction: its prediction.
        enough: what :func:`smallest_world` found where the plan does not fit.
    """
    states = counted_states(plan)
    capacity = prediction.memory.capacity_bytes
    fewest = ceil(states.total_bytes / capacity)
    numbers = (
        counted_quantity("states", plan),
        told("capacity", prediction, "memory.capacity_bytes", "bytes"),
        Quantity(name="fewest GPUs for states", value=fewest, unit="count"),
    )
    because = states_sentence(plan)
    if prediction.fits:
        return Finding(
            topic="world-size",
            claim=f"States alone would need {fewest} of these GPUs; this plan uses {plan.layout.world_size}, and "
            f"it {FIT_VERBS[prediction.fit]}.",
            numbers=numbers,
            because=because,
        )
    if enough is None:
        claim = f"States alone need at least {fewest} of these GPUs; no larger cluster helps this layout by itself."
        return Finding(
            topic="world-size", claim=claim, numbers=numbers, because=because, suggestion="change the layout"
        )
    return Finding(
        topic="world-size",
        claim=f"States alone need at least {fewest} of these GPUs; with dp_shard grown to "
        f"{enough.plan.layout.dp_shard}, this plan {FIT_VERBS[enough.fit]} on {enough.plan.cluster.num_gpus}.",
        numbers=(*numbers, Quantity(name="GPUs that hold the plan", value=enough.plan.cluster.num_gpus, unit="count")),
        because=because,
        suggestion=enough.edit,
    )


def smallest_world(plan: Plan, prediction: Prediction) -> VerifiedChange | None:
    """The smallest multiple of the cluster, in whole servers, on which the plan fits when dp_shard grows with it."""
    for edit in _more_gpus(plan):
        change = verify(edit, prediction=prediction)
        if change.fits:
            return change
    return None


def hardware_changes(
    plan: Plan, prediction: Prediction, *, enough: VerifiedChange | None
) -> tuple[VerifiedChange, ...]:
    """Larger hosts, more nodes (``enough``), or the next bigger GPUs, as far as they make the plan fit."""
    found = [enough] if enough is not None else []
    edits = _bigger_gpus(plan) if prediction.memory.fits_host else _roomier_hosts(plan, prediction)
    for edit in edits:
        change = verify(edit, prediction=prediction)
        if change.fits:
            found.append(change)
    return tuple(found[:MAX_HARDWARE_CHANGES])


def _more_gpus(plan: Plan) -> Iterator[Edit]:
    """Edits to more GPUs with an unchanged layout: more shards of the states, and a part of the batch for every rank.

    A part of a server grows to whole ones.
    """
    layout, recipe = plan.layout, plan.recipe
    for factor in GPU_FACTORS:
        cluster = resized(plan.cluster, factor * plan.cluster.num_gpus)
        if isinstance(cluster, str):
            continue
        grown = replace(
            layout,
            dp_shard=layout.dp_shard * factor,
            zero_stage=max(1, layout.zero_stage) if layout.state_shard_size == 1 else layout.zero_stage,
        )
        step = recipe.micro_batch_size * grown.data_parallel_size
        size = max(1, ceil(plan.global_batch_size / step)) * step
        wanted = (("dp_shard", grown.dp_shard), ("zero_stage", grown.zero_stage), ("global_batch_size", size))
        changes, larger = type_changes(replace(plan, cluster=cluster), wanted)
        if not find_errors(larger):
            size_first = merge(size_change(cluster, asked=plan.cluster), changes)
            yield Edit(changes=size_first, cost=f"{factor} times the GPUs", effort=HARDWARE, plan=larger)


def _roomier_hosts(plan: Plan, prediction: Prediction) -> Iterator[Edit]:
    """More memory in each node, or fewer ranks that share it."""
    enough = enough_host_gib(prediction.memory)
    roomier = None if enough is None else with_host_memory(plan.cluster, enough)
    if roomier is not None:
        yield Edit(
            changes=(("host_memory_gib", enough),),
            cost="hosts with more memory",
            effort=HARDWARE,
            plan=replace(plan, cluster=roomier),
        )
    for times in (2, 4, 8):
        spread = with_fewer_gpus_per_node(plan.cluster, times)
        if spread is not None and not find_errors(replace(plan, cluster=spread)):
            yield Edit(
                changes=(("gpus_per_node", spread.node.gpus_per_node), ("num_nodes", spread.num_nodes)),
                cost="the other GPUs of each node stay idle",
                effort=HARDWARE,
                plan=replace(plan, cluster=spread),
            )


def _bigger_gpus(plan: Plan) -> Iterator[Edit]:
    for gpu in bigger_gpus(plan.cluster.gpu):
        cluster = with_gpu(plan.cluster, gpu)
        if cluster is not None:
            memory = format_gib(gpu.memory_bytes)
            yield Edit(
                changes=(("gpu", gpu.id),),
                cost=f"other hardware ({memory} each)",
                effort=HARDWARE,
                plan=replace(plan, cluster=cluster),
            )

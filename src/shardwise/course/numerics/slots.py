"""What one rank's optimizer updates: vectors of weights, their gradients and their moments.

Shared by every way of dividing model states; what differs is how a gradient gets here and how the weights get out.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shardwise.course.numerics.adamw import AdamW, Moments, clip_factor, no_moments, update
from shardwise.course.numerics.arrays import Array, Weights
from shardwise.course.numerics.division import Division, copies_of_heads
from shardwise.course.numerics.shards import Flattening
from shardwise.course.numerics.world import Program, Rank, scalar
from shardwise.step.collective_calls import Group


@dataclass(slots=True, kw_only=True)
class Slot:
    """One vector of this rank: the whole of some weights, or its shard of them."""

    flattening: Flattening
    is_shard: bool
    weights: Array
    gradient: Array
    """Summed over all data-parallel ranks, before clipping."""
    moments: Moments
    norm_shares: Array
    """One over the number of ranks that hold the same element, so that the norm counts each once."""


def make_slot(division: Division, flattening: Flattening, weights: Weights, *, is_shard: bool) -> Slot:
    """The vector of this rank of some weights, and its moments."""

    def vector(arrays: Weights) -> Array:
        if not is_shard:
            return flattening.whole(arrays)
        return flattening.cut(arrays)[division.rank.index_in(flattening.group)].copy()

    own = vector(weights)
    replicas = division.plan.layout.dp_replicate * (1 if is_shard else flattening.group.size)
    shares = {
        key: np.full(shape, 1.0 / (replicas * division.num_copies(division.weights[key])))
        for key, shape in flattening.shapes
    }
    return Slot(
        flattening=flattening,
        is_shard=is_shard,
        weights=own,
        gradient=np.zeros_like(own),
        moments=no_moments(own),
        norm_shares=vector(shares),
    )


def flattenings_of(division: Division, weights: Weights, *, name: str, by_tensor: bool) -> tuple[Flattening, ...]:
    """Dense and routed weights apart where different ranks divide them."""
    groups = division.rank.groups
    dense = [key for key in weights if not division.weights[key].is_expert]
    routed = [key for key in weights if division.weights[key].is_expert]
    if groups.expert_shards.size == groups.shards.size:
        dense, routed = [*weights], []
    parts = ((name, dense, groups.shards), (f"{name} experts", routed, groups.expert_shards))
    return tuple(
        Flattening(
            name=part,
            shapes=tuple((key, weights[key].shape) for key in keys),
            group=group,
            by_tensor=by_tensor,
        )
        for part, keys, group in parts
        if keys
    )


def sum_over_tensor_ranks(rank: Rank, division: Division, gradients: Weights) -> Program[None]:
    """Complete gradients that tensor-parallel ranks have parts of, in place.

    Copies of key-value heads serve different query heads. With sequence parallelism, norms and routers, which every
    rank holds whole, have seen only part of the tokens.
    """
    phase, rank.phase = rank.phase, "optimizer"
    replicated = [key for key in gradients if division.weights[key].split == "replicated"]
    if rank.layout.sequence_parallel and replicated:
        yield from _sum_together(rank, gradients, replicated, "gradients of replicated weights")
    copied: dict[Group, list[tuple[int, str]]] = {}
    for key in gradients:
        group = copies_of_heads(division, division.weights[key])
        if group.size > 1:
            copied.setdefault(group, []).append(key)
    for group, keys in copied.items():
        yield from _sum_together(rank, gradients, keys, "gradients of copied key-value heads", group)
    rank.phase = phase


def _sum_together(
    rank: Rank, gradients: Weights, keys: Sequence[tuple[int, str]], name: str, group: Group | None = None
) -> Program[None]:
    """Sum several gradients over ranks in one all-reduce."""
    line = np.concatenate([gradients[key].reshape(-1) for key in keys])
    total = yield from rank.all_reduce(line, group or rank.groups.tensor, name=name)
    first = 0
    for key in keys:
        size = gradients[key].size
        gradients[key][...] = total[first : first + size].reshape(gradients[key].shape)
        first += size


def global_norm(rank: Rank, slots: Sequence[Slot]) -> Program[float]:
    """The norm of the gradient of the whole model: squares summed over shards, replicas, tensors and stages."""
    groups = rank.groups
    own = sum(float((slot.gradient.astype(np.float64) ** 2 * slot.norm_shares).sum()) for slot in slots)
    squares = scalar(own, slots[0].gradient)
    pipeline = Group(axis="pp", size=rank.layout.pp, stride=groups.pipeline.stride)
    for group in (groups.shards, groups.replicas, groups.tensor, pipeline):
        squares = yield from rank.all_reduce(squares, group, name="gradient norm")
    return float(np.sqrt(squares[0]))


def update_slots(slots: Sequence[Slot], norm: float, settings: AdamW) -> None:
    """Clip the gradients by their norm and update the weights."""
    factor = clip_factor(norm, settings)
    for slot in slots:
        gradient = slot.gradient * slot.gradient.dtype.type(factor)
        slot.weights = update(slot.weights, gradient, slot.moments, settings)

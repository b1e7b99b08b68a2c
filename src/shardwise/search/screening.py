"""The screening of a space: the rows that fit and may be the fastest, estimated, and what became of the others.

1. Every axis is enumerated; a row that breaks a rule, or whose model states alone exceed the device, is dropped.
2. The memory of a sample of the rows is computed, and the fastest of it that fits is found. A row whose lower bound
   lies far above that time is *slower*, whether or not it would fit.
3. The memory of the others is computed. Those that fit are estimated from the lowest bound up until none that is left
   can matter.
4. A row that is too big is made to fit, by recomputing some blocks or by moving something to the host, where its bound
   says that it may be the fastest then.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial

import numpy as np

from shardwise.plan import Plan
from shardwise.search.bounds import SearchBounds
from shardwise.search.candidates import RECOMPUTES, Candidates, FloatColumn, IntColumn, constant
from shardwise.search.cuts import Cuts
from shardwise.search.memory_estimate import MemoryEstimate
from shardwise.search.pool import (
    Pool,
    fewest_modules,
    fewest_recomputed,
    highest_choice,
    least_offloaded,
    lowest_choice,
)
from shardwise.search.probes import Probes
from shardwise.search.records import Objective
from shardwise.search.refinement import Cutoffs, Refinement
from shardwise.search.space import Space
from shardwise.search.time_estimate import TimeEstimate
from shardwise.search.validity import ValidCandidates, valid_candidates
from shardwise.units import Bytes

__all__ = ["Screened", "screen"]

CUTOFFS: dict[Objective, Cutoffs] = {
    "step_time": Cutoffs(within_ratio=1.1, front_ratio=1.3),
    "cost": Cutoffs(within_ratio=1.1, front_ratio=1.3),
    "cost_and_time": Cutoffs(within_ratio=1.1, front_ratio=1.3),
    "fewest_gpus": Cutoffs(within_ratio=1.1, front_ratio=1.3),
    "memory": Cutoffs(within_ratio=1.02, front_ratio=16.0, front_step_fraction=0.005),
}
"""The rows that are estimated to the end, by objective: all that the prediction could still rank first, and the
front of time and memory."""
MADE_TO_FIT_RATIO = 1.02
"""How far above the fastest estimate the bound of a row may be for it to be worth making it fit."""
SMALL_SPACE, SMALL_RATIO = 30_000, 1.5
"""In a space of so few rows estimates cost little, and more of them are needed to show different layouts."""
SAMPLE_STRIDE = 17
"""Distance between the sampled rows of a larger space, whose memory and time are estimated first. It is a prime, so
that the sample runs through every option of every axis."""
CLEARLY_RATIO = 1.02
"""How far above the device the example of what does not fit is, so that the two figures differ as they are printed."""
READ_AT_ONCE = 2048
"""Rows whose whole memory is computed together in search of one that lacks little."""
SOME_MEMORY_BYTES = 1
ONLY_THE_FASTEST = Cutoffs(within_ratio=1.0, front_ratio=1.0)
TRIED_SMALLEST = 64
"""Candidates that are checked for one that breaks no rule, when nothing fits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Screened:
    """The rows of a space that fit and are estimated, and what became of the others."""

    pool: Pool
    step_s: FloatColumn
    valid: ValidCandidates
    num_valid: int
    """Decorated rows that break no rule."""
    num_too_big: int
    """Decorated rows that are known to need more than the device."""
    num_evaluated: int
    """Decorated rows whose memory was computed one by one."""
    too_big: Candidates
    """The row that lacks least memory among those that are too big; empty where none is."""
    smallest: Callable[[], Candidates]
    """Finds a few rows that need the least memory."""


def screen(
    question: Plan,
    bounds: SearchBounds,
    *,
    objective: Objective = "step_time",
    cutoffs: Cutoffs | None = None,
) -> Screened:
    """Enumerate the space and estimate the rows that matter.

    Args:
        question: a plan whose layout is ignored.
        bounds: limits of the space.
        objective: what is to be small, which decides how far rows are estimated.
        cutoffs: how far instead.
    """
    plain = SearchBounds()  # how many plans are predicted and shown is no matter of the space
    space = replace(bounds, max_plans=plain.max_plans, max_predictions=plain.max_predictions)
    return _screened(question, space, objective, cutoffs)


@lru_cache(maxsize=2)
def _screened(question: Plan, bounds: SearchBounds, objective: Objective, cutoffs: Cutoffs | None) -> Screened:
    """The screened space, kept because a question that a few predictions find promising is searched in full next."""
    limits = cutoffs or CUTOFFS[objective]
    space, capacity_bytes = Space(question=question, bounds=bounds), question.cluster.gpu.memory_bytes
    estimate = _estimate_of(_Asked.of(question))
    memory = estimate.memory
    dropped: list[Candidates] = []
    nearest: list[Candidates] = []

    def states_fit(rows: Candidates) -> np.ndarray:
        moved = replace(rows, offload=highest_choice(rows))
        states_bytes = memory.states_bytes(moved)
        fits = states_bytes <= capacity_bytes
        dropped.append(rows)
        by_need = np.argsort(np.where(fits, np.inf, states_bytes), kind="stable")
        nearest.append(moved.take(by_need[: int(not fits.all())]))
        return fits

    valid = valid_candidates(space, states_fit=states_fit)
    num_valid = valid.num_too_big + int(space.num_decorations(valid.rows).sum())
    cuts = Cuts(estimate, valid.rows)
    first, moving = _first_and_moving(cuts, valid, space)
    if len(first) <= SMALL_SPACE and cutoffs is None:
        limits = replace(limits, within_ratio=max(SMALL_RATIO, limits.within_ratio))
    with_memory = _filtered_by_memory(first, memory, limits, capacity_bytes)
    is_content = objective == "memory" and bool(first.is_estimated.any())
    more = first.pool(with_memory[:0]) if is_content else _made_to_fit(space, first, moving, with_memory, memory=memory)
    second = Refinement(cuts, more.rows, more.num_microbatches)
    second.needed_bytes = more.needed_bytes
    second.run(limits, known=first.estimated())
    kept = [np.flatnonzero(part.is_estimated) for part in (first, second)]
    too_big = with_memory[first.needed_bytes[with_memory] > capacity_bytes]
    row, mode, _ = first.recomputed(too_big)
    stands_for = np.where(np.isin(mode, space.counted_modes), space.most_layers(first.plain.pp[row]), 1)
    nearly = _lacks_least(first, too_big, memory, capacity_bytes)
    return Screened(
        pool=first.pool(kept[0]).joined(more.take(kept[1])),
        step_s=np.concatenate([first.step_s[kept[0]], second.step_s[kept[1]]]),
        valid=valid,
        num_valid=num_valid,
        num_too_big=valid.num_too_big + int(stands_for.sum()),
        num_evaluated=len(with_memory) + len(more),
        too_big=first.take(nearly) if len(nearly) or not nearest else nearest[0],
        smallest=partial(_least_memory, first, with_memory, dropped, space, memory),
    )


@dataclass(frozen=True, slots=True)
class _Asked:
    """A question, equal to those that only differ in what the tables of an estimate do not depend on."""

    key: Plan
    question: Plan = field(compare=False)

    @staticmethod
    def of(question: Plan) -> "_Asked":
        """Without the size of the memory, and without what every row says of its own recipe."""
        node = question.cluster.node
        gpu = replace(node.gpu, memory_bytes=SOME_MEMORY_BYTES)
        recipe = replace(
            question.recipe,
            micro_batch_size=1,
            recompute="none",
            recompute_layers=None,
            offload="none",
            activation_offload=False,
        )
        cluster = replace(question.cluster, node=replace(node, gpu=gpu))
        return _Asked(replace(question, cluster=cluster, recipe=recipe), question)


@lru_cache(maxsize=2)
def _estimate_of(asked: _Asked) -> TimeEstimate:
    """The tables of a question; asked again with more memory, they are filled already."""
    return TimeEstimate(memory=MemoryEstimate(probes=Probes(question=asked.question)))


def _filtered_by_memory(first: Refinement, memory: MemoryEstimate, limits: Cutoffs, capacity_bytes: Bytes) -> IntColumn:
    """Compute the memory of the rows that may matter and refine those that fit; the rows whose memory is known then.

    The fastest of an even sample that fits shows which bounds are too high for a row to matter; when nothing in the
    sample fits, the memory of all rows is computed.
    """
    sample = np.arange(0, len(first), SAMPLE_STRIDE if len(first) > SMALL_SPACE else 1)
    known = _fill_memory(first, sample, memory, capacity_bytes)
    first.run(ONLY_THE_FASTEST, among=known)
    found = first.estimated().step_s
    reach_s = max(limits.within_ratio, limits.front_ratio) * found[0] if len(found) else np.inf
    left = np.flatnonzero(np.isnan(first.needed_bytes) & (first.step_s <= reach_s))
    first.step_s[left] = first.bounds_s(left)
    others = left[first.step_s[left] <= reach_s]
    known = np.concatenate([known, _fill_memory(first, others, memory, capacity_bytes)])
    first.run(limits, among=np.sort(known))
    return np.flatnonzero(~np.isnan(first.needed_bytes))


def _fill_memory(first: Refinement, chosen: IntColumn, memory: MemoryEstimate, capacity_bytes: Bytes) -> IntColumn:
    """Fill in the memory of some rows; those of them that fit.

    What is too big is given what shows it, which may be less than it needs; what offloads more than its host holds is
    given no end of it.
    """
    some = first.take(chosen)
    needed = memory.device_bytes(some, enough_bytes=capacity_bytes)
    needed[~memory.fits_host(some)] = np.inf
    first.needed_bytes[chosen] = needed
    return chosen[needed <= capacity_bytes]


def _lacks_least(first: Refinement, too_big: IntColumn, memory: MemoryEstimate, capacity_bytes: Bytes) -> IntColumn:
    """A row that lacks little and clearly does not fit, in an array; empty without."""
    order = too_big[np.argsort(first.needed_bytes[too_big], kind="stable")]
    for start in range(0, len(order), READ_AT_ONCE):
        some = order[start : start + READ_AT_ONCE]
        needed = memory.device_bytes(first.take(some))
        clearly = np.where(needed > CLEARLY_RATIO * capacity_bytes, needed, np.inf)
        if np.isfinite(clearly).any():
            return some[[np.argmin(clearly)]]
    return order[:0]


def _first_and_moving(cuts: Cuts, valid: ValidCandidates, space: Space) -> tuple[Refinement, Refinement | None]:
    """The rows with the least on the host that is searched, and those that are there only to move more, if any."""
    rows, counts, ways = valid.rows, valid.num_microbatches, space.ways_to_recompute
    lowest = lowest_choice(rows)
    stays = lowest == space.least_offload
    plain = replace(rows, offload=lowest) if len(rows) else rows
    if stays.all():
        return Refinement(cuts, plain, counts, ways=ways), None
    first = Refinement(cuts, plain.take(stays), counts[stays], ways=ways)
    return first, Refinement(cuts, plain.take(~stays), counts[~stays], ways=ways)


def _made_to_fit(
    space: Space, first: Refinement, moving: Refinement | None, with_memory: IntColumn, *, memory: MemoryEstimate
) -> Pool:
    """Rows that are too big, with some blocks recomputed or with states or activations on the host so that they fit.

    Only those whose bound leaves them in the running without either.
    """
    capacity_bytes = space.question.cluster.gpu.memory_bytes
    known = first.estimated().step_s
    fastest_s = known[0] if len(known) else np.inf
    too_big = with_memory[first.needed_bytes[with_memory] > capacity_bytes]
    left = first.pool(too_big[first.bounds_s(too_big) <= MADE_TO_FIT_RATIO * fastest_s])
    plain = left.take((left.rows.recompute == RECOMPUTES.index("none")) & np.isfinite(left.needed_bytes))
    partly = fewest_recomputed(plain, space, memory=memory, capacity_bytes=capacity_bytes)
    partly = partly.joined(fewest_modules(plain, space, memory=memory, capacity_bytes=capacity_bytes))
    if moving is not None:
        left = left.joined(_unfit(moving.pool(np.flatnonzero(moving.step_s <= MADE_TO_FIT_RATIO * fastest_s)), space))
    moved = least_offloaded(left, space, memory=memory, capacity_bytes=capacity_bytes)
    return partly.joined(moved)


def _unfit(pool: Pool, space: Space) -> Pool:
    """Rows as ones that do not fit before anything moves."""
    nothing = constant(space.least_offload, len(pool))
    return replace(pool, rows=replace(pool.rows, offload=nothing), needed_bytes=np.full(len(pool), np.inf))


def _least_memory(
    first: Refinement, with_memory: IntColumn, dropped: list[Candidates], space: Space, memory: MemoryEstimate
) -> Candidates:
    """The rows to look at when nothing fits, those that need least first."""
    if len(with_memory) or not dropped or not len(dropped[0]):
        lightest = with_memory[np.argsort(first.needed_bytes[with_memory], kind="stable")]
        rows = first.take(lightest[:READ_AT_ONCE])
    else:
        rows = dropped[0]
        deepest = constant(max(space.recomputes), len(rows))
        divides = (rows.tp > 1) & (space.bounds.sequence_parallel is not False)
        rows = replace(
            rows, recompute=deepest, sequence_parallel=divides.astype(np.int64), offload=highest_choice(rows)
        )
    order = np.argsort(memory.device_bytes(rows), kind="stable")
    return rows.take(order[:TRIED_SMALLEST])

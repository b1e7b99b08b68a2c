"""Decorated rows with what was computed of them, and the ways to make more of them fit."""

from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from shardwise.search.candidates import OFFLOADS, RECOMPUTES, Candidates, FloatColumn, IntColumn, Mask, constant
from shardwise.search.memory_estimate import MemoryEstimate
from shardwise.search.space import Space
from shardwise.units import Bytes

__all__ = ["Pool", "fewest_recomputed", "highest_choice", "least_offloaded", "lowest_choice"]

TRIED_AT_ONCE = 7
"""Numbers of recomputed blocks between two bounds: few rows take nearly as long as eight times as many."""
SETS_OF_OFFLOADS = range(1 << len(OFFLOADS))
LOWEST_BITS = np.asarray([(choices & -choices).bit_length() - 1 for choices in SETS_OF_OFFLOADS])
HIGHEST_BITS = np.asarray([choices.bit_length() - 1 for choices in SETS_OF_OFFLOADS])
"""Position in ``OFFLOADS`` of the way to offload that moves least, and most, one entry per set of ways (a bit mask); -1
for the empty set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Rows with their micro-batches and the memory they need."""

    rows: Candidates
    num_microbatches: IntColumn
    needed_bytes: FloatColumn

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, chosen: Mask | IntColumn) -> "Pool":
        """Some of the rows."""
        return Pool(
            rows=self.rows.take(chosen),
            num_microbatches=self.num_microbatches[chosen],
            needed_bytes=self.needed_bytes[chosen],
        )

    def joined(self, other: "Pool") -> "Pool":
        """These rows, then those of another."""
        return Pool(
            rows=self.rows.joined(other.rows),
            num_microbatches=np.concatenate([self.num_microbatches, other.num_microbatches]),
            needed_bytes=np.concatenate([self.needed_bytes, other.needed_bytes]),
        )

    @classmethod
    def of(
        cls,
        rows: Candidates,
        num_microbatches: IntColumn,
        memory: MemoryEstimate,
        *,
        capacity_bytes: float = np.inf,
    ) -> "Pool":
        """Rows with the memory they need; those that need more than the capacity with no more than shows it."""
        needed_bytes = memory.device_bytes(rows, enough_bytes=capacity_bytes)
        return cls(rows=rows, num_microbatches=num_microbatches, needed_bytes=needed_bytes)


def lowest_choice(rows: Candidates) -> IntColumn:
    """The way to offload that moves least, of those that break no rule."""
    lowest: IntColumn = LOWEST_BITS[rows.offload_choices]
    return lowest


def highest_choice(rows: Candidates) -> IntColumn:
    """The way to offload that moves most."""
    highest: IntColumn = HIGHEST_BITS[rows.offload_choices]
    return highest


def fewest_recomputed(pool: Pool, space: Space, *, memory: MemoryEstimate, capacity_bytes: Bytes) -> Pool:
    """Rows that do not fit without recomputation, each with the fewest blocks per mode with which it does.

    More of them cost time and give memory back, so the fewest are the fastest that fit. Rows that fit in no way, or
    only with all blocks recomputed, are left out.

    Args:
        pool: rows without recomputation.
        space: where they come from.
        memory: what rows need.
        capacity_bytes: of the device.
    """
    pool_of = partial(Pool.of, memory=memory, capacity_bytes=capacity_bytes)
    modes = space.counted_modes
    if not modes or not len(pool):
        return pool.take(np.zeros(len(pool), dtype=np.bool_))
    # All modes at once: an estimate of few rows takes nearly as long as one of thousands.
    which = np.repeat(np.asarray(modes), len(pool))
    asked = pool.take(np.tile(np.arange(len(pool)), len(modes)))
    layers = space.most_layers(asked.rows.pp)
    every = pool_of(_recomputing(asked.rows, which, constant(0, len(which))), asked.num_microbatches)
    helps = np.flatnonzero((asked.needed_bytes > capacity_bytes) & (every.needed_bytes <= capacity_bytes))
    some, mode, most, needed = asked.take(helps), which[helps], layers[helps], every.needed_bytes[helps]
    # More blocks never need more: of a few numbers of blocks the fewest that fit show between which two to look next.
    fewest, enough = np.zeros_like(most), most.copy()
    while len(left := np.flatnonzero(enough - fewest > 1)):
        shares = np.arange(1, TRIED_AT_ONCE + 1) / (TRIED_AT_ONCE + 1)
        between = fewest[left, None] + np.ceil((enough - fewest)[left, None] * shares).astype(np.int64)
        between = np.minimum(between, enough[left, None] - 1)
        which = np.repeat(left, TRIED_AT_ONCE)
        tried = pool_of(_recomputing(some.rows.take(which), mode[which], between.ravel()), some.num_microbatches[which])
        needs = tried.needed_bytes.reshape(between.shape)
        num_too_few = np.argmax(np.column_stack([needs <= capacity_bytes, np.ones(len(left), dtype=np.bool_)]), axis=1)
        bounds = np.column_stack([fewest[left], between, enough[left]])
        row = np.arange(len(left))
        fewest[left], enough[left] = bounds[row, num_too_few], bounds[row, num_too_few + 1]
        needed[left] = np.column_stack([needs, needed[left]])[row, num_too_few]
    rows = _recomputing(some.rows, mode, enough)
    solved = Pool(rows=rows, num_microbatches=some.num_microbatches, needed_bytes=needed)
    return solved.take(enough < most)


def fewest_modules(pool: Pool, space: Space, *, memory: MemoryEstimate, capacity_bytes: Bytes) -> Pool:
    """Rows that do not fit without recomputation, each with the first set of modules with which it does.

    Later sets cost more time, so that is the fastest that fits. Rows that fit with none of them are left out.
    """
    found, left = pool.take(np.zeros(0, dtype=np.int64)), pool
    for modules in space.module_sets:
        size = len(left)
        mode, bits = constant(RECOMPUTES.index("selective"), size), constant(modules, size)
        rows = replace(left.rows, recompute=mode, recompute_modules=bits)
        tried = Pool.of(rows, left.num_microbatches, memory, capacity_bytes=capacity_bytes)
        fits = tried.needed_bytes <= capacity_bytes
        found, left = found.joined(tried.take(fits)), left.take(~fits)
    return found


def least_offloaded(pool: Pool, space: Space, *, memory: MemoryEstimate, capacity_bytes: Bytes) -> Pool:
    """Rows that do not fit, with the least that has to move to the host for them to fit.

    States move in steps, each of which holds less on the device and waits no less for the host than the one before;
    activations move or stay. The least of each is the fastest that fits.
    """
    pool_of = partial(Pool.of, memory=memory, capacity_bytes=capacity_bytes)
    most = pool_of(_all_moved(pool.rows, space), pool.num_microbatches)
    pool = pool.take((most.needed_bytes <= capacity_bytes) & (pool.needed_bytes > capacity_bytes))
    ways = [(int(moves), mode) for moves in space.activation_offloads for mode in range(len(OFFLOADS))]
    # All ways at once: few rows take nearly as long as many.
    asked = pool.take(np.tile(np.arange(len(pool)), len(ways)))
    moves_activations, modes = (np.repeat(np.asarray(column), len(pool)) for column in zip(*ways, strict=True))
    is_offered = (asked.rows.offload_choices & (1 << modes)) > 0
    is_other = (asked.rows.offload != modes) | (asked.rows.activation_offload != moves_activations)
    places = np.flatnonzero(is_offered & is_other)
    moved = replace(asked.rows, offload=modes, activation_offload=moves_activations).take(places)
    tried = pool_of(moved, asked.num_microbatches[places])
    fits = tried.needed_bytes <= capacity_bytes
    fits[fits] = memory.fits_host(moved.take(fits))
    # The first way of each row that fits, with and without moving activations.
    row, moves = places % max(1, len(pool)), moves_activations[places]
    first = np.unique((row * 2 + moves)[fits], return_index=True)[1]
    return tried.take(np.sort(np.flatnonzero(fits)[first]))


def _all_moved(rows: Candidates, space: Space) -> Candidates:
    """The rows with everything on the host that may move there."""
    moves = constant(int(max(space.activation_offloads)), len(rows))
    return replace(rows, offload=highest_choice(rows), activation_offload=moves)


def _recomputing(rows: Candidates, mode: IntColumn, layers: IntColumn) -> Candidates:
    return replace(rows, recompute=mode, recompute_layers=layers)

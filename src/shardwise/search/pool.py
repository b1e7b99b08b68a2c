"""Decorated rows with what was computed of them, and the ways to make more of them fit."""

from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from shardwise.search.candidates import OFFLOADS, RECOMPUTES, Candidates, FloatColumn, IntColumn, Mask
from shardwise.search.memory_estimate import MemoryEstimate
from shardwise.search.space import Space
from shardwise.units import Bytes

__all__ = ["Pool", "fewest_recomputed", "highest_choice", "least_offloaded", "lowest_choice"]


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
        needed_bytes = memory.device_bytes(rows, num_microbatches=num_microbatches, enough_bytes=capacity_bytes)
        return cls(rows=rows, num_microbatches=num_microbatches, needed_bytes=needed_bytes)


def lowest_choice(rows: Candidates) -> IntColumn:
    """The way to offload that moves least, of those that break no rule."""
    choices = rows.offload_choices
    lowest: IntColumn = np.log2((choices & -choices).astype(np.float64)).astype(np.int64)
    return lowest


def highest_choice(rows: Candidates) -> IntColumn:
    """The way to offload that moves most."""
    highest: IntColumn = np.floor(np.log2(rows.offload_choices.astype(np.float64))).astype(np.int64)
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
    weighed = partial(Pool.of, memory=memory, capacity_bytes=capacity_bytes)
    found = pool.take(np.zeros(len(pool), dtype=np.bool_))
    modes = [mode for mode in space.recomputes if mode != RECOMPUTES.index("none")]
    for mode in modes if space.counts_layers else ():
        layers = space.most_layers(pool.rows)
        every = weighed(_recomputing(pool.rows, mode, 0 * layers), pool.num_microbatches)
        helps = np.flatnonzero((pool.needed_bytes > capacity_bytes) & (every.needed_bytes <= capacity_bytes))
        some, most = pool.take(helps), layers[helps]
        # More blocks never need more, so the fewest that fit are found by halving, from where a straight line points
        # and next to it, which is where most are.
        share = (some.needed_bytes - capacity_bytes) / (some.needed_bytes - every.needed_bytes[helps])
        fewest, enough = np.zeros_like(most), most.copy()
        needed = every.needed_bytes[helps]
        middle = np.clip(np.ceil(share * most).astype(np.int64), 1, np.maximum(1, most - 1))
        is_next_to_it = True
        while len(left := np.flatnonzero(enough - fewest > 1)):
            tried = weighed(_recomputing(some.rows.take(left), mode, middle[left]), some.num_microbatches[left])
            fits = tried.needed_bytes <= capacity_bytes
            enough[left] = np.where(fits, middle[left], enough[left])
            needed[left] = np.where(fits, tried.needed_bytes, needed[left])
            fewest[left] = np.where(fits, fewest[left], middle[left])
            middle = (fewest + enough) // 2
            if is_next_to_it:
                middle[left] = np.where(fits, enough[left] - 1, fewest[left] + 1)
            is_next_to_it = False
        rows = _recomputing(some.rows, mode, enough)
        solved = Pool(rows=rows, num_microbatches=some.num_microbatches, needed_bytes=needed)
        found = found.joined(solved.take(enough < most))
    return found


def least_offloaded(pool: Pool, space: Space, *, memory: MemoryEstimate, capacity_bytes: Bytes) -> Pool:
    """Rows that do not fit, with the least that has to move to the host for them to fit.

    States move in steps, each of which holds less on the device and waits no less for the host than the one before;
    activations move or stay. The least of each is the fastest that fits.
    """
    found = pool.take(np.zeros(len(pool), dtype=np.bool_))
    weighed = partial(Pool.of, memory=memory, capacity_bytes=capacity_bytes)
    most = weighed(_all_moved(pool.rows, space), pool.num_microbatches)
    pool = pool.take(most.needed_bytes <= capacity_bytes)
    for moves_activations in space.activation_offloads:
        left = pool.take(pool.needed_bytes > capacity_bytes)
        for mode in range(len(OFFLOADS)):
            is_offered = (left.rows.offload_choices & (1 << mode)) > 0
            is_other = (left.rows.offload != mode) | (left.rows.activation_offload != moves_activations)
            asked = left.take(is_offered & is_other)
            size = len(asked)
            if not size:
                continue
            moved = replace(
                asked.rows,
                offload=np.full(size, mode, dtype=np.int64),
                activation_offload=np.full(size, int(moves_activations), dtype=np.int64),
            )
            tried = weighed(moved, asked.num_microbatches)
            fits = tried.needed_bytes <= capacity_bytes
            found = found.joined(tried.take(fits))
            unsolved = ~(is_offered & is_other)
            unsolved[np.flatnonzero(is_offered & is_other)[~fits]] = True
            left = left.take(unsolved)
    return found


def _all_moved(rows: Candidates, space: Space) -> Candidates:
    """The rows with everything on the host that may move there."""
    moves = np.full(len(rows), int(max(space.activation_offloads)), dtype=np.int64)
    return replace(rows, offload=highest_choice(rows), activation_offload=moves)


def _recomputing(rows: Candidates, mode: int, layers: IntColumn) -> Candidates:
    return replace(rows, recompute=np.full(len(rows), mode, dtype=np.int64), recompute_layers=layers)

"""The memory of the rows of a refinement, computed of as few of them as show which fit."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from shardwise.search.candidates import FloatColumn, IntColumn
from shardwise.search.memory_estimate import MemoryEstimate
from shardwise.search.refinement import Refinement
from shardwise.units import Bytes

__all__ = ["Weighing"]

FEW_ROWS = 1 << 13
"""So few rows are weighed at once; of more, the smallest micro-batches first."""
CLEARLY_RATIO = 1.02
"""How far above the device the example of what does not fit is, so that no rounding of the estimate makes it fit."""
READ_AT_ONCE, READ_NEXT_RATIO = 512, 4
"""Rows that are weighed to the end together, in search of the one that lacks least, and how many times more of them
each further time: near the limit are either a few rows or some thousands, which would take long in small parts."""


@dataclass(frozen=True, kw_only=True)
class Weighing:
    """Fills in ``Refinement.needed_bytes``. What is too big is given what shows it, which may be less than it needs;
    what offloads more than its host holds is given no end of it."""

    refinement: Refinement
    memory: MemoryEstimate
    capacity_bytes: Bytes

    def weigh(self, chosen: IntColumn) -> IntColumn:
        """Weigh some rows, in ascending order; those of them that fit.

        A larger micro-batch never needs less, so a row is too big when the same with a smaller one is. A step of a
        single micro-batch is an exception, since its gradients wait for no other.
        """
        needed, counts = self.refinement.needed_bytes, self.refinement.num_microbatches
        left = chosen[np.argsort(self._siblings[chosen], kind="stable")] if len(chosen) > FEW_ROWS else chosen
        while len(left) > FEW_ROWS:
            siblings = self._siblings[left]
            is_smallest = np.concatenate([[True], siblings[1:] != siblings[:-1]])
            self._fill_in(left[is_smallest])
            lightest = needed[left[is_smallest]]
            of_smallest = lightest[np.cumsum(is_smallest) - 1]
            is_implied = ~is_smallest & (of_smallest > self.capacity_bytes) & (counts(left) > 1)
            needed[left[is_implied]] = of_smallest[is_implied]
            left = left[~is_smallest & ~is_implied]
        if len(left):
            self._fill_in(left)
        return chosen[needed[chosen] <= self.capacity_bytes]

    def lacks_least(self, too_big: IntColumn) -> IntColumn:
        """The row that lacks least of those that clearly do not fit, in an array; empty without."""
        found: tuple[float, int] | None = None
        needed = self.refinement.needed_bytes
        order = too_big[np.argsort(needed[too_big], kind="stable")]
        start, at_once = 0, READ_AT_ONCE
        while start < len(order):
            some = order[start : start + at_once]
            start, at_once = start + at_once, READ_NEXT_RATIO * at_once
            if found is not None and needed[some[0]] > found[0]:
                break
            exact = self._bytes(some)
            clear = np.flatnonzero(exact > CLEARLY_RATIO * self.capacity_bytes)
            candidates = [(float(exact[position]), int(some[position])) for position in clear]
            found = min([*candidates, *([found] if found else [])], default=None)
        return np.asarray([found[1]] if found else [], dtype=np.int64)

    def lightest(self, rows: IntColumn, *, most: int) -> IntColumn:
        """The rows that need least, in that order."""
        shown = rows[np.argsort(self.refinement.needed_bytes[rows], kind="stable")][:READ_AT_ONCE]
        if not len(shown):
            return shown
        return shown[np.argsort(self._bytes(shown), kind="stable")][:most]

    def _fill_in(self, rows: IntColumn) -> None:
        some = self.refinement.take(rows)
        needed = self.memory.device_bytes(some, enough_bytes=self.capacity_bytes)
        needed[~self.memory.fits_host(some)] = np.inf
        self.refinement.needed_bytes[rows] = needed

    def _bytes(self, rows: IntColumn) -> FloatColumn:
        return self.memory.device_bytes(self.refinement.take(rows))

    @cached_property
    def _siblings(self) -> IntColumn:
        """Rows that differ in their micro-batch only have one number; they follow each other, the smallest first."""
        rows, copies = self.refinement.plain, self.refinement.copies
        is_new = np.zeros(len(rows), dtype=np.bool_)
        for name in rows.names:
            if name not in ("micro_batch_size", "recompute", "recompute_layers"):
                column = rows.column(name)
                is_new[1:] |= column[1:] != column[:-1]
        family = np.cumsum(is_new)
        return np.repeat(family * copies, copies) + np.tile(np.arange(copies), len(family))

"""Estimates of the rows that can matter, found best first; the others stay at a bound that shows they cannot.

A row starts with a bound on its step time: its blocks at the speed of a wider cut of the tokens (:mod:`.cuts`). Rows
are taken from the lowest bound up. A row whose own cut is timed is estimated; for the others the next cut on the way to
theirs is. That ends when no row is left that may *matter*: within a share of the fastest estimate, or with less memory
than every row estimated to be as fast. Pruning changes no estimate and no order among the rows that matter.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from shardwise.search.candidates import Candidates, FloatColumn, IntColumn, Key, Mask, group_rows
from shardwise.search.cuts import Cuts
from shardwise.search.pool import Pool
from shardwise.search.time_estimate import BOUND_FRACTION

__all__ = ["Cutoffs", "Known", "Refinement"]

FEWEST_AT_ONCE, MOST_AT_ONCE = 4, 64
"""Combinations of degrees that are asked of the inventory before the order is looked at again: few before there is an
estimate to compare with, then more."""
ROWS_AT_ONCE = 128
"""Rows for each of them."""
READ_AT_ONCE = 1024
"""Rows that are read together for the first different values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cutoffs:
    """Limits on the rows whose step time a search must estimate."""

    within_ratio: float
    """Every row matters up to this multiple of the fastest step time."""
    front_ratio: float
    """Rows that need less memory than all that are as fast matter up to this multiple of the fastest step time."""
    front_step_fraction: float = 0.03
    """Share by which memory has to be lower to count as less."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """Estimates and memory of rows, fastest first."""

    step_s: FloatColumn
    needed_bytes: FloatColumn


NOTHING = Known(step_s=np.zeros(0), needed_bytes=np.zeros(0))


class Refinement:
    """Refines some rows of one question."""

    def __init__(self, cuts: Cuts, rows: Candidates, num_microbatches: IntColumn, *, ways: Sequence[Key] = ()) -> None:
        """Rows at their first bound.

        Args:
            cuts: of these rows and others.
            rows: to be refined.
            num_microbatches: of every row.
            ways: to recompute, each a mode and how many blocks. Every row then stands for one of each, which are
                numbered one after the other; most are never looked at, so they are made when asked for. As the rows
                say without.
        """
        self.plain = rows
        self.copies = max(1, len(ways))
        self._ways = np.asarray(ways, dtype=np.int64).reshape(-1, 2).T
        self._num_microbatches = num_microbatches
        self._cuts = cuts
        self.is_estimated: Mask = np.zeros(len(self), dtype=np.bool_)
        self.needed_bytes: FloatColumn = np.full(len(self), np.nan)
        """Memory of the rows where it is known, to be filled in before they are refined."""
        self._others = NOTHING
        self.step_s: FloatColumn = np.zeros(len(self))
        """The estimate, or a bound on it."""
        if len(rows):
            self._cut_of = cuts.of(rows)
            self._weight = cuts.estimate.passes_weight(rows, num_microbatches)
            self._update_s = cuts.estimate.host.update_s(rows)
            self.step_s = self.bounds_s(np.arange(len(self)))

    def __len__(self) -> int:
        return self.copies * len(self.plain)

    def take(self, chosen: IntColumn) -> Candidates:
        """Some of the rows, each with its own way to recompute."""
        row, mode, layers = self.recomputed(chosen)
        return replace(self.plain.take(row), recompute=mode, recompute_layers=layers)

    def recomputed(self, chosen: IntColumn) -> tuple[IntColumn, IntColumn, IntColumn]:
        """For each chosen row: its index in ``plain``, its recompute mode and its number of recomputed blocks."""
        if not self._ways.size:
            return chosen, self.plain.recompute[chosen], self.plain.recompute_layers[chosen]
        row, way = np.divmod(chosen, self.copies)
        mode, layers = self._ways
        return row, mode[way], layers[way]

    def num_microbatches(self, chosen: IntColumn) -> IntColumn:
        """Number of micro-batches of each chosen row, per data-parallel rank and step."""
        return self._num_microbatches[chosen // self.copies]

    def pool(self, chosen: IntColumn) -> Pool:
        """Some of the rows with their memory."""
        return Pool(
            rows=self.take(chosen),
            num_microbatches=self.num_microbatches(chosen),
            needed_bytes=self.needed_bytes[chosen],
        )

    def bounds_s(self, chosen: IntColumn) -> FloatColumn:
        """A lower bound on the step time of each chosen row, in seconds, from the blocks that are timed by now."""
        if not len(chosen):
            return np.zeros(0)
        row, mode, layers = self.recomputed(chosen)
        is_partial = (layers > 0) | (self.plain.recompute_modules[row] > 0)
        each = self._cuts.totals(self._cut_of[row], np.where(is_partial, 0, mode))
        bound: FloatColumn = BOUND_FRACTION * np.sum(each * self._weight[row], axis=1)
        return bound + self._update_s[row]

    def run(self, cutoffs: Cutoffs, *, among: IntColumn | None = None, known: Known = NOTHING) -> None:
        """Refine until every row that may matter is estimated.

        Args:
            cutoffs: how far behind the fastest a row may be and still matter.
            among: rows to refine, whose memory is filled in; all of them without.
            known: rows estimated elsewhere that these compete with.
        """
        self._others = known
        running = np.arange(len(self)) if among is None else among
        at_once = FEWEST_AT_ONCE
        while True:
            running = running[~self.is_estimated[running]]
            running = running[self._may_matter(running, cutoffs)]
            if not len(running):
                return
            running = running[np.argsort(self.step_s[running], kind="stable")]
            cuts = self._cut_of[running // self.copies]
            is_timed = self._cuts.is_timed[cuts]
            self._cuts.time(_first_distinct(self._cuts.next_cut[cuts[~is_timed]], at_once))
            self._estimate(running[is_timed], at_once)
            left = running[~is_timed]
            self.step_s[left] = self.bounds_s(left)
            at_once = min(2 * at_once, MOST_AT_ONCE)

    def estimated(self) -> Known:
        """The rows that are estimated by now, and those they were compared with, fastest first."""
        done = np.flatnonzero(self.is_estimated)
        step_s = np.concatenate([self.step_s[done], self._others.step_s])
        needed_bytes = np.concatenate([self.needed_bytes[done], self._others.needed_bytes])
        order = np.argsort(step_s, kind="stable")
        return Known(step_s=step_s[order], needed_bytes=needed_bytes[order])

    def _may_matter(self, running: IntColumn, cutoffs: Cutoffs) -> Mask:
        done = self.estimated()
        if not len(done.step_s):
            return np.ones(len(running), dtype=np.bool_)
        bounds, fastest_s = self.step_s[running], done.step_s[0]
        near: Mask = bounds <= cutoffs.within_ratio * fastest_s
        in_reach = np.flatnonzero(~near & (bounds <= cutoffs.front_ratio * fastest_s))
        least = np.minimum.accumulate(done.needed_bytes)
        position = np.searchsorted(done.step_s, bounds[in_reach], side="right") - 1
        near[in_reach] = self.needed_bytes[running[in_reach]] < (1 - cutoffs.front_step_fraction) * least[position]
        return near

    def _estimate(self, order: IntColumn, at_once: int) -> None:
        """Estimate the rows of the lowest bounds, those of a few combinations of degrees."""
        ready = order[: ROWS_AT_ONCE * at_once]
        if not len(ready):
            return
        rows = self.take(ready)
        groups = group_rows(self._cuts.estimate.sharding_columns(rows))[0]
        chosen = np.flatnonzero(np.isin(groups, _first_distinct(groups, at_once)))
        ready, rows = ready[chosen], rows.take(chosen)
        self.step_s[ready] = self._cuts.estimate.step_s(rows, num_microbatches=self.num_microbatches(ready))
        self.is_estimated[ready] = True


def _first_distinct(values: IntColumn, most: int) -> IntColumn:
    """The first few different values, in the order they appear."""
    found: dict[int, None] = {}
    for start in range(0, len(values), READ_AT_ONCE):
        found |= dict.fromkeys(values[start : start + READ_AT_ONCE].tolist())
        if len(found) >= most:
            break
    return np.asarray(list(found)[:most], dtype=np.int64)

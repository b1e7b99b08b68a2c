"""Estimates of the rows that can matter, found best first; the others are left at a bound that shows they cannot.

Every row starts with a bound on its step time and is refined in levels, each no less than the one before:

1. its blocks at the speed of a wider cut of the tokens (:meth:`TimeEstimate.wider`) and the copies around them, without
   ends and messages;
2. its own blocks, the embedding, the head, messages between stages and the bubble;
3. with data parallelism and the optimizer, which is the estimate.

Rows are refined from the lowest bound up, and only while they are wanted: within a share of the fastest estimate, or
with less memory than every row estimated to be as fast. A row that is never wanted keeps its bound. That pruning
changes no estimate and no order among those that are wanted.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from shardwise.search.block_times import BLOCK_FIELDS
from shardwise.search.candidates import Candidates, FloatColumn, IntColumn, Key, Mask, distinct_keys, group_rows
from shardwise.search.pool import Pool
from shardwise.search.time_estimate import BOUND_FRACTION, TimeEstimate

__all__ = ["ESTIMATED", "CutTree", "Known", "Refinement", "Wanted"]

BOUNDED, TIMED, ESTIMATED = range(3)
FEWEST_AT_ONCE, MOST_AT_ONCE = 4, 64
"""Combinations of degrees that are asked of the inventory before the order is looked at again: few before there is an
estimate to compare with, then more."""
ROWS_AT_ONCE = 128
"""Rows for each of them."""
READ_AT_ONCE = 1024
"""Rows that are read together for the first different values."""
TOTALS = {
    "none": ("forward", "backward", "exposed"),
    "selective": ("forward", "backward", "exposed", "recompute_selective", "modules_exposed"),
    "full": ("forward", "backward", "exposed", "recompute_full", "forward_exposed"),
}
"""What a block adds to a step under each recompute mode."""
TOTAL_OF_FIELDS = np.asarray([[float(field in names) for names in TOTALS.values()] for field in BLOCK_FIELDS])
WAITS = ("exposed", "forward_exposed")
WAITS_OF_FIELDS = np.where(np.isin(BLOCK_FIELDS, WAITS)[:, None], TOTAL_OF_FIELDS, 0.0)
"""The part of it that waits for communication."""
NO_RECOMPUTE = list(TOTALS).index("none")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which rows a search must know the estimate of."""

    within_ratio: float
    """Up to so many times the fastest estimate."""
    front_ratio: float
    """Up to so many times the fastest: those with less memory than all that are as fast."""
    front_step_fraction: float = 0.03
    """Memory has to fall by this share to count as less."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """Estimates and memory of rows, fastest first."""

    step_s: FloatColumn
    needed_bytes: FloatColumn


class Refinement:
    """Refines the rows of one question."""

    def __init__(
        self,
        estimate: TimeEstimate,
        rows: Candidates,
        num_microbatches: IntColumn,
        *,
        ways: Sequence[Key] = (),
        after: "Refinement | None" = None,
    ) -> None:
        """Rows at their first bound.

        Args:
            estimate: what rows are timed with.
            rows: to be refined.
            num_microbatches: of every row.
            ways: to recompute, each a mode and how many blocks. Every row then stands for one of each, which are
                numbered one after the other; most are never looked at, so they are made when asked for. As the rows
                say without.
            after: what was refined before, whose cuts are known.
        """
        self.plain = rows
        self.copies = max(1, len(ways))
        self._ways = np.asarray(ways, dtype=np.int64).reshape(-1, 2).T
        self._num_microbatches = num_microbatches
        self.estimate = estimate
        self.level = np.zeros(len(self), dtype=np.int64)
        self.needed_bytes: FloatColumn = np.full(len(self), np.nan)
        """Memory of the rows where it is known, to be filled in before they are refined."""
        self._known: Known | None = None
        self._done: IntColumn = np.zeros(0, dtype=np.int64)
        """The rows that are estimated, in ascending order."""
        self.step_s: FloatColumn = np.zeros(len(self))
        """The estimate, or a bound on it where the level is lower."""
        if not len(rows):
            return
        keys, self._key_of = distinct_keys(estimate.block_columns(rows))
        self._cuts = CutTree(estimate, keys, known=after.timed_cuts if after is not None else frozenset())
        self._weight = estimate.passes_weight(rows, num_microbatches)
        self._beside_s = estimate.beside_blocks_s(rows, num_microbatches)
        self._lines: FloatColumn = np.zeros((len(self), 2, 2))
        self.step_s = self.bounds_s(np.arange(len(self)))

    def __len__(self) -> int:
        return self.copies * len(self.plain)

    def take(self, chosen: IntColumn) -> Candidates:
        """Some of the rows, each with its own way to recompute."""
        row, mode, layers = self.recomputed(chosen)
        return replace(self.plain.take(row), recompute=mode, recompute_layers=layers)

    def recomputed(self, chosen: IntColumn) -> tuple[IntColumn, IntColumn, IntColumn]:
        """Of some of the rows: which they are without a way to recompute, and that: the mode and how many blocks."""
        if not self._ways.size:
            return chosen, self.plain.recompute[chosen], self.plain.recompute_layers[chosen]
        row, way = np.divmod(chosen, self.copies)
        mode, layers = self._ways
        return row, mode[way], layers[way]

    def num_microbatches(self, chosen: IntColumn) -> IntColumn:
        """Of some of the rows."""
        return self._num_microbatches[chosen // self.copies]

    def run(self, wanted: Wanted, *, among: IntColumn | None = None, known: "Known | None" = None) -> None:
        """Refine until every wanted row is estimated.

        Args:
            wanted: which rows are.
            among: rows to refine, whose memory is filled in; all of them without.
            known: rows estimated elsewhere that these compete with.
        """
        self._known = known
        running = np.arange(len(self)) if among is None else among
        at_once = FEWEST_AT_ONCE
        while True:
            running = running[self.level[running] < ESTIMATED]
            running = running[self._is_wanted(running, wanted)]
            if not len(running):
                return
            running = running[np.argsort(self.step_s[running], kind="stable")]
            self._refine_bounds(running[self.level[running] == BOUNDED], at_once)
            self._refine_passes(running[self.level[running] == TIMED], at_once)
            at_once = min(2 * at_once, MOST_AT_ONCE)

    @property
    def timed_cuts(self) -> frozenset[Key]:
        """The cuts that were asked about so far: what a refinement does depends on its rows alone, not on what the
        estimate remembers of other searches."""
        return self._cuts.timed_keys if len(self) else frozenset()

    def pool(self, chosen: IntColumn) -> Pool:
        """Some of the rows with their memory."""
        return Pool(
            rows=self.take(chosen),
            num_microbatches=self.num_microbatches(chosen),
            needed_bytes=self.needed_bytes[chosen],
        )

    def estimated(self) -> "Known":
        """The rows that are estimated by now, and those they were compared with, fastest first."""
        step_s, needed_bytes = self.step_s[self._done], self.needed_bytes[self._done]
        if self._known is not None:
            step_s = np.concatenate([step_s, self._known.step_s])
            needed_bytes = np.concatenate([needed_bytes, self._known.needed_bytes])
        order = np.argsort(step_s, kind="stable")
        return Known(step_s=step_s[order], needed_bytes=needed_bytes[order])

    def _is_wanted(self, running: IntColumn, wanted: Wanted) -> Mask:
        done = self.estimated()
        if not len(done.step_s):
            return np.ones(len(running), dtype=np.bool_)
        bounds, fastest_s = self.step_s[running], done.step_s[0]
        near: Mask = bounds <= wanted.within_ratio * fastest_s
        in_reach = np.flatnonzero(~near & (bounds <= wanted.front_ratio * fastest_s))
        least = np.minimum.accumulate(done.needed_bytes)
        position = np.searchsorted(done.step_s, bounds[in_reach], side="right") - 1
        near[in_reach] = self.needed_bytes[running[in_reach]] < (1 - wanted.front_step_fraction) * least[position]
        return near

    def _refine_bounds(self, order: IntColumn, at_once: int) -> None:
        """Time the blocks of the most promising rows, or the next narrower cut on the way to them."""
        if not len(order):
            return
        keys = self._key_of[order // self.copies]
        is_exact = self._cuts.is_timed[keys]
        self._cuts.time(_first_distinct(self._cuts.next_cut[keys[~is_exact]], at_once))
        ready = order[is_exact][: ROWS_AT_ONCE * at_once]
        if len(ready):
            some = self.take(ready)
            found = self.estimate.passes(some, self.num_microbatches(ready), self.estimate.block_work(some))
            self.step_s[ready] = found.total
            self._lines[ready] = found.lines
            self.level[ready] = TIMED
        touched = order[~is_exact]
        self.step_s[touched] = self.bounds_s(touched)

    def _refine_passes(self, order: IntColumn, at_once: int) -> None:
        """Add data parallelism to the most promising rows."""
        if not len(order):
            return
        rows = self.take(order)
        groups = group_rows(self.estimate.sharding_columns(rows))[0]
        chosen = np.flatnonzero(np.isin(groups, _first_distinct(groups, at_once)))
        ready, some = order[chosen], rows.take(chosen)
        added = self.estimate.data_parallel_s(some, self.num_microbatches(ready), self._lines[ready])
        self.step_s[ready] += added
        self.level[ready] = ESTIMATED
        self._done = np.sort(np.concatenate([self._done, ready]))

    def bounds_s(self, chosen: IntColumn) -> FloatColumn:
        """What some rows take at the least, as far as their blocks are timed by now."""
        if not len(chosen):
            return np.zeros(0)
        row, mode, layers = self.recomputed(chosen)
        each = self._cuts.totals(self._key_of[row], np.where(layers > 0, 0, mode))
        bound: FloatColumn = BOUND_FRACTION * np.sum(each * self._weight[row], axis=1)
        return bound + self._beside_s[row]


class CutTree:
    """Cuts of the tokens of a rank, each below the wider one that is at least as fast per token.

    What is timed of a cut bounds every cut below it. Waiting for communication under recomputation is the exception. A
    block has as many kernels for fewer tokens, and where the host launches them longer than the device computes,
    messages pass for nothing. That alone makes no cut faster, for the launching takes longer than both; but an estimate
    lets what is recomputed pass there for nothing, too. What may hide so is left out of the bound.
    """

    def __init__(self, estimate: TimeEstimate, keys: Sequence[Key], *, known: frozenset[Key] = frozenset()) -> None:
        self._estimate = estimate
        self._keys: list[Key] = list(keys)
        self._parent = self._grow(keys)
        self._tokens = np.asarray([key[5] / key[1] for key in self._keys])
        self._levels = self._by_depth()
        self._per_token = np.zeros((len(self._keys), len(TOTALS), len(estimate.probes.shapes)))
        self._waits_per_token = np.zeros_like(self._per_token)
        """The part of it that waits for communication; where a cut is not timed, of the wider one that bounds it."""
        self._computed_per_token = np.zeros_like(self._per_token)
        """The other part."""
        self._launches_s = np.zeros((len(self._keys), 1, len(estimate.probes.shapes)))
        """To launch a block, however many tokens it computes."""
        self.is_timed: Mask = np.zeros(len(self._keys), dtype=np.bool_)
        self.next_cut: IntColumn = np.arange(len(self._keys))
        """Of every cut: the widest on the way to it that is not timed yet."""
        is_known = np.asarray([key in known for key in self._keys], dtype=np.bool_)
        self.time(np.flatnonzero((self._parent < 0) | is_known))

    @property
    def timed_keys(self) -> frozenset[Key]:
        """Of the cuts that are timed."""
        return frozenset(self._keys[cut] for cut in np.flatnonzero(self.is_timed).tolist())

    def totals(self, cuts: IntColumn, modes: IntColumn) -> FloatColumn:
        """``(cuts, shapes)``: seconds of one block, or a bound where a cut is not timed, under a recompute mode."""
        found: FloatColumn = self._per_token[cuts, modes] * self._tokens[cuts, None]
        return found

    def time(self, cuts: IntColumn) -> None:
        """Ask the inventory about some cuts, and bound those below them."""
        rows = self._estimate.block_table.rows([self._keys[cut] for cut in cuts.tolist()])
        for cut, row in zip(cuts.tolist(), rows, strict=True):
            table = np.asarray(row).reshape(-1, len(BLOCK_FIELDS))
            self._per_token[cut] = (table @ TOTAL_OF_FIELDS).T / self._tokens[cut]
            self._waits_per_token[cut] = (table @ WAITS_OF_FIELDS).T / self._tokens[cut]
            self._computed_per_token[cut] = self._per_token[cut] - self._waits_per_token[cut]
            self._launches_s[cut] = table[:, BLOCK_FIELDS.index("launches")]
        self.is_timed[cuts] = True
        for level in self._levels:
            parent = self._parent[level]
            untimed = level[~self.is_timed[level]]
            for inherited in (self._waits_per_token, self._computed_per_token, self._launches_s):
                inherited[untimed] = inherited[self._parent[untimed]]
            self._per_token[untimed] = self._bound_per_token(untimed)
            self.next_cut[level] = np.where(self.is_timed[parent], level, self.next_cut[parent])

    def _bound_per_token(self, cuts: IntColumn) -> FloatColumn:
        """Of cuts that are not timed, from the wider ones."""
        computed, waits = self._computed_per_token[cuts], self._waits_per_token[cuts]
        launches = self._launches_s[cuts, 0] / self._tokens[cuts, None]
        hides = np.maximum(0.0, launches - computed[:, NO_RECOMPUTE])[:, None]
        bound: FloatColumn = computed + np.maximum(0.0, waits - hides)
        bound[:, NO_RECOMPUTE] = computed[:, NO_RECOMPUTE] + waits[:, NO_RECOMPUTE]
        return bound

    def _grow(self, keys: Sequence[Key]) -> IntColumn:
        """Append the wider cuts of all keys; the position of the wider cut of each, -1 without."""
        positions = {key: position for position, key in enumerate(keys)}
        parents: list[int] = []
        position = 0
        while position < len(self._keys):
            wider = self._estimate.wider(self._keys[position])
            if wider is not None and wider not in positions:
                positions[wider] = len(self._keys)
                self._keys.append(wider)
            parents.append(-1 if wider is None else positions[wider])
            position += 1
        return np.asarray(parents, dtype=np.int64)

    def _by_depth(self) -> list[IntColumn]:
        """The cuts below the widest, level by level."""
        levels: list[IntColumn] = []
        depth = np.where(self._parent < 0, 0, -1)
        while (depth < 0).any():
            below = np.flatnonzero((depth < 0) & (depth[self._parent] == len(levels)))
            depth[below] = len(levels) + 1
            levels.append(below)
        return levels


def _first_distinct(values: IntColumn, most: int) -> IntColumn:
    """The first few different values, in the order they appear."""
    found: dict[int, None] = {}
    for start in range(0, len(values), READ_AT_ONCE):
        found |= dict.fromkeys(values[start : start + READ_AT_ONCE].tolist())
        if len(found) >= most:
            break
    return np.asarray(list(found)[:most], dtype=np.int64)

"""Seconds of a block for every cut of the tokens, or a bound on them where a cut is not timed yet.

A cut says how many tokens a rank computes at once and over which ranks a block is divided. The block of a *wider* cut
is at least as fast per token: the same tokens on fewer context-parallel ranks exchange less, and more tokens at once
fill kernels better. So what is timed of a cut bounds every cut below it, and a search times only those on the way to
the layouts that may be fastest.
"""

from collections.abc import Sequence

import numpy as np

from shardwise.search.block_times import BLOCK_FIELDS
from shardwise.search.candidates import Candidates, FloatColumn, IntColumn, Key, Mask, distinct_keys
from shardwise.search.time_estimate import TimeEstimate

__all__ = ["Cuts"]

TOTALS = {
    "none": ("forward", "backward", "exposed"),
    "selective": ("forward", "backward", "exposed", "recompute_selective", "modules_exposed"),
    "full": ("forward", "backward", "exposed", "recompute_full", "forward_exposed"),
}
"""The block fields whose sum is the time that a block adds to a step, by recompute mode."""
TOTAL_OF_FIELDS = np.asarray([[float(field in names) for names in TOTALS.values()] for field in BLOCK_FIELDS])
WAITS = ("exposed", "forward_exposed")
WAITS_OF_FIELDS = np.where(np.isin(BLOCK_FIELDS, WAITS)[:, None], TOTAL_OF_FIELDS, 0.0)
"""The part of it that waits for communication."""
NO_RECOMPUTE = list(TOTALS).index("none")


class Cuts:
    """The cuts of one question's rows and those that are wider, as a forest.

    Waiting for communication under recomputation is the exception to the order. A block has as many kernels for fewer
    tokens, and where the host launches them longer than the device computes, messages pass for nothing. That alone
    makes no cut faster, for the launching takes longer than both; but an estimate lets what is recomputed pass there
    for nothing, too. What may hide so is left out of the bound.
    """

    def __init__(self, estimate: TimeEstimate, rows: Candidates) -> None:
        self.estimate = estimate
        keys = distinct_keys(estimate.block_columns(rows))[0] if len(rows) else []
        self._keys: list[Key] = list(keys)
        self._places: dict[Key, int] = {key: place for place, key in enumerate(keys)}
        self._parent = self._grow()
        self._tokens = np.asarray([key[5] / key[1] for key in self._keys])
        self._levels = self._by_depth()
        self._per_token = np.zeros((len(self._keys), len(TOTALS), len(estimate.probes.shapes)))
        self._waits_per_token = np.zeros_like(self._per_token)
        """The part of it that waits for communication; where a cut is not timed, of the wider one that bounds it."""
        self._computed_per_token = np.zeros_like(self._per_token)
        """The other part."""
        self._launches_s = np.zeros((len(self._keys), 1, len(estimate.probes.shapes)))
        """Host time to launch the kernels of a block, however many tokens it computes."""
        self.is_timed: Mask = np.zeros(len(self._keys), dtype=np.bool_)
        self.next_cut: IntColumn = np.arange(len(self._keys))
        """For each cut: the widest untimed cut on the path to it from the root; the next one to time."""
        self.time(np.flatnonzero(self._parent < 0))

    def __len__(self) -> int:
        return len(self._keys)

    def of(self, rows: Candidates) -> IntColumn:
        """The cut of every row."""
        keys, of_row = distinct_keys(self.estimate.block_columns(rows))
        return np.asarray([self._places[key] for key in keys], dtype=np.int64)[of_row]

    def totals(self, cuts: IntColumn, modes: IntColumn) -> FloatColumn:
        """``(cuts, shapes)``: seconds of one block, or a bound where a cut is not timed, under a recompute mode."""
        found: FloatColumn = self._per_token[cuts, modes] * self._tokens[cuts, None]
        return found

    def time(self, cuts: IntColumn) -> None:
        """Ask the inventory about some cuts, and bound those below them."""
        rows = self.estimate.block_table.rows([self._keys[cut] for cut in cuts.tolist()])
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
        """Lower bounds on the seconds per token of untimed cuts, from the wider cuts above them."""
        computed, waits = self._computed_per_token[cuts], self._waits_per_token[cuts]
        launches = self._launches_s[cuts, 0] / self._tokens[cuts, None]
        hides = np.maximum(0.0, launches - computed[:, NO_RECOMPUTE])[:, None]
        bound: FloatColumn = computed + np.maximum(0.0, waits - hides)
        bound[:, NO_RECOMPUTE] = computed[:, NO_RECOMPUTE] + waits[:, NO_RECOMPUTE]
        return bound

    def _grow(self) -> IntColumn:
        """Append the wider cuts of all keys; the position of the wider cut of each, -1 without."""
        parents: list[int] = []
        for key in self._keys:  # grows meanwhile
            wider = self.estimate.wider(key)
            if wider is not None and wider not in self._places:
                self._places[wider] = len(self._keys)
                self._keys.append(wider)
            parents.append(-1 if wider is None else self._places[wider])
        return np.asarray(parents, dtype=np.int64)

    def _by_depth(self) -> Sequence[IntColumn]:
        """The cuts below the widest, level by level."""
        levels: list[IntColumn] = []
        depth = np.where(self._parent < 0, 0, -1)
        while (depth < 0).any():
            below = np.flatnonzero((depth < 0) & (depth[self._parent] == len(levels)))
            depth[below] = len(levels) + 1
            levels.append(below)
        return levels

"""Functions of a few degrees, asked once for every combination of them that occurs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from shardwise.search.candidates import FloatColumn, IntColumn, Key, distinct_keys

__all__ = ["Combined", "Table"]

Row = tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Combined:
    """Several integer columns combined into one, so that repeated look-ups group their rows only once."""

    keys: Sequence[Key]
    """The distinct combinations of values in the columns."""
    of_row: IntColumn
    """Index into ``keys`` for each row."""

    @classmethod
    def of(cls, columns: Sequence[IntColumn]) -> "Combined":
        """Combine some columns."""
        keys, of_row = distinct_keys(columns)
        return cls(keys=keys, of_row=of_row)


class Table:
    """A function of integer keys with its results remembered, looked up for whole columns at once."""

    def __init__(self, function: Callable[[Key], Row]) -> None:
        self._function = function
        self._rows: dict[Key, Row] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def rows(self, keys: Sequence[Key]) -> list[Row]:
        """The function of each key."""
        for key in keys:
            if key not in self._rows:
                self._rows[key] = self._function(key)
        return [self._rows[key] for key in keys]

    def look_up(self, columns: Sequence[IntColumn]) -> FloatColumn:
        """``(rows, results)``: the function of some columns."""
        return self.of(Combined.of(columns))

    def of(self, asked: Combined) -> FloatColumn:
        """``(rows, results)``: the same of columns that are combined already."""
        found: FloatColumn = np.take(np.asarray(self.rows(asked.keys), dtype=np.float64), asked.of_row, axis=0)
        return found

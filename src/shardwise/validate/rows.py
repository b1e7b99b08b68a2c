"""The shipped measurement tables as records, one per published row, before anything is interpreted."""

import csv
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasurementRow:
    """One row of a measurement table: its cells by column name, empty cells included."""

    id: str
    family: str
    """The source that published it."""
    cells: tuple[tuple[str, str], ...]

    def text(self, column: str) -> str:
        """The cell of ``column``; empty when the source does not state it."""
        return next((value for name, value in self.cells if name == column), "")

    def number(self, column: str) -> float | None:
        """The cell as a number; ``None`` when it is empty or not a plain number."""
        try:
            return float(self.text(column))
        except ValueError:
            return None

    def integer(self, column: str) -> int | None:
        """The cell as an integer; ``None`` when it is empty or not a whole number."""
        number = self.number(column)
        return int(number) if number is not None and number.is_integer() else None


Cells = Mapping[str, str]
Table = Literal["cost", "components"]


@lru_cache
def read_rows(table: Table) -> tuple[MeasurementRow, ...]:
    """All rows of one shipped measurement table, in file order."""
    text = files("shardwise.catalog").joinpath("measurements", f"{table}.csv").read_text(encoding="utf-8")
    return rows_in(text, family_of=family_of_id)


def rows_in(text: str, *, family_of: Callable[[Cells], str]) -> tuple[MeasurementRow, ...]:
    """The rows of a measurement table in CSV, each with the family that its cells say it belongs to."""
    rows = csv.DictReader(text.splitlines())
    return tuple(MeasurementRow(id=row["id"], family=family_of(row), cells=tuple(row.items())) for row in rows)


def family_of_id(cells: Cells) -> str:
    """The prefix of the id, which rows of one source share."""
    return cells["id"].split("-")[0]

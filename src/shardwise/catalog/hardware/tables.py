"""Read one CSV file of the catalogue into rows whose cells are asked for by name and type."""

import csv
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_DATA = Path(__file__).parent / "data"


@dataclass(frozen=True, slots=True)
class TableRow:
    """One line of a CSV file. An empty cell means unknown or not applicable."""

    columns: tuple[str, ...]
    cells: tuple[str, ...]

    def text(self, column: str) -> str:
        """The cell as written."""
        return self.cells[self.columns.index(column)]

    def number(self, column: str, default: float = 0.0) -> float:
        """The cell as a number; ``default`` when it is empty."""
        cell = self.text(column)
        return float(cell) if cell else default

    def count(self, column: str, default: int = 0) -> int:
        """The cell as a whole number; ``default`` when it is empty."""
        cell = self.text(column)
        return int(cell) if cell else default

    def claim(self, column: str) -> bool:
        """The cell as yes (1) or no (0 or empty)."""
        return self.text(column) == "1"

    def names(self, column: str) -> tuple[str, ...]:
        """The cell as a list separated by ``|``."""
        return tuple(name for name in self.text(column).split("|") if name)

    def sources(self) -> str:
        """Every source key of the row, once, in column order; ``sources.csv`` expands them."""
        keys: list[str] = []
        for column, cell in zip(self.columns, self.cells, strict=True):
            if column == "source" or column.startswith("source_"):
                keys += [key for key in cell.split(";") if key and key not in keys]
        return ";".join(keys)


@cache
def read_table(name: str) -> tuple[TableRow, ...]:
    """Every row of ``data/<name>.csv`` in file order."""
    with (_DATA / f"{name}.csv").open(newline="", encoding="utf-8") as file:
        lines = csv.reader(file)
        columns = tuple(next(lines))
        return tuple(TableRow(columns, tuple(cells)) for cells in lines)

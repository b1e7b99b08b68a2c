"""The shipped measurement tables as records, one per published row, before anything is interpreted."""

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files

from shardwise.errors import ShardwiseError


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasurementRow:
    """One row of a measurement table: its cells by column name, empty cells included."""

    table: str
    id: str
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

    @property
    def family(self) -> str:
        """The source family: the prefix of the id, or for ``runs.csv`` the repository it came from."""
        if self.table != "runs":
            return self.id.split("-")[0]
        return RUN_FAMILIES.get(self.text("source").split("@")[0].split(":")[0], "RUNS")


RUN_FAMILIES = {
    "pytorch/torchtitan": "RUNTITAN",
    "mosaicml/llm-foundry": "RUNMPT",
    "Lightning-AI/litgpt": "RUNLITGPT",
    "foundation-model-stack/fms-acceleration": "RUNFMS",
    "AnswerDotAI/fsdp_qlora": "RUNQLORA",
    "pytorch/torchtune": "RUNTUNE",
    "NVIDIA-NeMo/Megatron-Bridge": "RUNBRIDGE",
    "MooreThreads/SimuMax": "RUNSIMU",
}
"""Family of a ``runs.csv`` row by the repository that published it; its ids say nothing about the source."""

TABLES = ("memory", "runs", "throughput", "cost", "readings", "components", "recipes")


@lru_cache
def read_rows(table: str) -> tuple[MeasurementRow, ...]:
    """All rows of one shipped measurement table, in file order."""
    if table not in TABLES:
        raise ShardwiseError(
            f"there is no measurement table {table!r}; the tables are {', '.join(TABLES)}",
            code="validate-table",
            fix=f"use table={TABLES[0]!r}",
        )
    return tuple(_rows(table))


def _rows(table: str) -> Iterator[MeasurementRow]:
    text = files("shardwise.catalog").joinpath("measurements", f"{table}.csv").read_text(encoding="utf-8")
    for cells in csv.DictReader(text.splitlines()):
        yield MeasurementRow(table=table, id=cells["id"], cells=tuple(cells.items()))

"""The constants and formulas of NCCL's own cost model and of the AWS plugin, with file and commit."""

from dataclasses import dataclass
from functools import cache

from shardwise.catalog.hardware.tables import number_or_none, read_table
from shardwise.units import Bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclConstant:
    """One constant or formula of the NCCL cost model, or of a network plugin, as its source states it."""

    group: str
    name: str
    algorithm: str
    protocol: str
    scope: str
    """GPU generation, link kind, instance type or operation that the value is for."""
    nodes_class: str
    message_bytes: Bytes
    """0 where the value does not depend on the message."""
    text: str
    """A number, a formula or a list, as written."""
    unit: str
    path: str
    commit: str
    notes: str

    @property
    def value(self) -> float | None:
        """The text as a number, in ``unit``; ``None`` for formulas and lists."""
        return number_or_none(self.text)


@cache
def load_nccl_constants() -> tuple[NcclConstant, ...]:
    """Every constant and formula of the NCCL cost model, in file order."""
    return tuple(
        NcclConstant(
            group=row.text("group"),
            name=row.text("name"),
            algorithm=row.text("algorithm"),
            protocol=row.text("protocol"),
            scope=row.text("scope"),
            nodes_class=row.text("nodes_class"),
            message_bytes=row.count("message_bytes"),
            text=row.text("value"),
            unit=row.text("unit"),
            path=row.text("path"),
            commit=row.text("commit"),
            notes=row.text("notes"),
        )
        for row in read_table("nccl_constants")
    )

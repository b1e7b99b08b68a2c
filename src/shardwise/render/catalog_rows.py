"""The catalogue as sections of rows, for a table, for JSON, and for one entry with its references."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from shardwise.catalog import Link, load_gpus, load_networks, load_nodes, load_prices
from shardwise.catalog.hardware.facts import Source, load_sources
from shardwise.cluster import Gpu, Node, Price
from shardwise.families import ModelEntry, load_models

CATALOG_SCHEMA = "shardwise.catalog/1"

CatalogRow = Gpu | Node | Link | Price | ModelEntry


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogEntry:
    """One row with the section it is from and the references its source keys stand for."""

    section: str
    row: CatalogRow
    references: tuple[Source, ...]


def sections() -> Mapping[str, Sequence[CatalogRow]]:
    """Every row of the catalogue by section."""
    return {
        "gpus": load_gpus(),
        "nodes": load_nodes(),
        "networks": load_networks(),
        "prices": load_prices(),
        "models": load_models(),
    }


def row_id(row: CatalogRow) -> str:
    """The name a row is found by; prices are found by their GPU."""
    if isinstance(row, Price):
        return row.gpu_id
    return row.name if isinstance(row, ModelEntry) else row.id


def rows_with(section: str, word: str) -> tuple[CatalogRow, ...]:
    """The rows of a section whose id, name or provider contains ``word``."""
    wanted = word.casefold()
    return tuple(row for row in sections()[section] if any(wanted in name.casefold() for name in _names(row)))


def _names(row: CatalogRow) -> tuple[str, ...]:
    if isinstance(row, Price):
        return (row.gpu_id, row.provider, row.sku, row.kind)
    if isinstance(row, ModelEntry):
        return (row.name, *row.aliases, row.model_type)
    if isinstance(row, Node):
        return (row.id, row.name, row.provider, row.gpu.id)
    return (row.id, row.name) if isinstance(row, Gpu) else (row.id, row.kind)


def find_entry(entry_id: str) -> CatalogEntry | None:
    """The GPU, node, network or model with exactly this id, whatever the case."""
    wanted = entry_id.casefold()
    for section, rows in sections().items():
        for row in rows:
            if section != "prices" and row_id(row).casefold() == wanted:
                return CatalogEntry(section=section, row=row, references=_references(row.source))
    return None


def _references(keys: str) -> tuple[Source, ...]:
    wanted = keys.split(";")
    return tuple(source for source in load_sources() if source.key in wanted)


def section_object(section: str, rows: Sequence[CatalogRow]) -> dict[str, object]:
    """Rows of one section as JSON, under the records' own field names."""
    return {"schema": CATALOG_SCHEMA, "section": section, "rows": [asdict(row) for row in rows]}


def entry_object(entry: CatalogEntry) -> dict[str, object]:
    """One row with its references as JSON."""
    return {
        "schema": CATALOG_SCHEMA,
        "section": entry.section,
        "rows": [asdict(entry.row)],
        "references": [asdict(reference) for reference in entry.references],
    }


def sizes_object() -> dict[str, object]:
    """How many entries each section has."""
    return {"schema": CATALOG_SCHEMA, "sections": {section: len(rows) for section, rows in sections().items()}}

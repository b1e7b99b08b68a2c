"""Catalogue rows as JSON: the fields of the records under their own names, units included."""

from collections.abc import Sequence
from dataclasses import asdict

from shardwise.catalog import Link
from shardwise.cluster import Gpu, Node, Price

CATALOG_SCHEMA = "shardwise.catalog/1"

CatalogRow = Gpu | Node | Link | Price


def catalog_object(*, section: str, rows: Sequence[CatalogRow]) -> dict[str, object]:
    """One section of the catalogue."""
    return {"schema": CATALOG_SCHEMA, "section": section, "rows": [asdict(row) for row in rows]}

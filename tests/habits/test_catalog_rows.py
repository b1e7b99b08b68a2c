"""Every catalogue row says where it comes from and of when it is; its source keys can be looked up."""

import re
from dataclasses import dataclass

import pytest

from shardwise.catalog import load_gpus, load_networks, load_nodes, load_prices
from shardwise.catalog.hardware.facts import load_sources
from shardwise.families import load_models

TABLES = {
    "gpus": load_gpus(),
    "nodes": load_nodes(),
    "networks": load_networks(),
    "prices": load_prices(),
    "models": load_models(),
}
YEAR = re.compile(r"\b20\d{2}\b")


def faults(rows) -> list[str]:
    """Rows without a source or without a date."""
    found = []
    for row in rows:
        name = getattr(row, "id", None) or getattr(row, "name", None) or row.gpu_id
        if not row.source:
            found.append(f"{name}: no source")
        if not YEAR.search(row.date):
            found.append(f"{name}: no date")
    return found


@pytest.mark.parametrize("table", TABLES)
def test_every_row_has_a_source_and_a_date(table):
    assert faults(TABLES[table]) == []


def test_every_source_key_of_the_hardware_is_explained():
    keys = {source.key for source in load_sources()}
    used = {
        key
        for table in ("gpus", "nodes", "networks", "prices")
        for row in TABLES[table]
        for key in row.source.split(";")
    }
    assert sorted(used - keys) == []


def test_a_row_without_source_or_date_is_found():
    @dataclass
    class Row:
        id: str = "x100"
        source: str = ""
        date: str = "recently"

    assert faults([Row()]) == ["x100: no source", "x100: no date"]

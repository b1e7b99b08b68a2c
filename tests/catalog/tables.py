"""The data files as plain rows, for the tests that check the files themselves."""

import csv
from pathlib import Path

import shardwise.catalog.hardware

DATA = Path(shardwise.catalog.hardware.__file__).parent / "data"
FACT_TABLES = (
    "accelerators",
    "nodes",
    "networks",
    "prices",
    "achieved",
    "collective_sweeps",
    "comm_fits",
    "kernel_fits",
    "nccl_constants",
    "reliability",
    "cost_facts",
)


def rows(name):
    with (DATA / f"{name}.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def row(name, row_id):
    return next(line for line in rows(name) if line["id"] == row_id)


def source_columns(line):
    return [column for column in line if column == "source" or column.startswith("source_")]


def source_keys(line):
    return {key for column in source_columns(line) for key in line[column].split(";") if key}

"""What each family's source states about its runs beyond the rows: the facts conversions rest on, with citation."""

import csv
from functools import lru_cache
from importlib.resources import files

from shardwise.validate.records import SetupFact


@lru_cache
def setup_facts() -> tuple[SetupFact, ...]:
    """All facts of ``catalog/measurements/setups.csv``, in file order."""
    text = files("shardwise.catalog").joinpath("measurements", "setups.csv").read_text(encoding="utf-8")
    return tuple(
        SetupFact(family=cells["family"], fact=cells["fact"], source=cells["source"], date=cells["date"])
        for cells in csv.DictReader(text.splitlines())
    )

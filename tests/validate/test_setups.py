"""The facts behind the conversions: what the source of each family states about its runs beyond the rows."""

import csv
from importlib.resources import files

from benchmarks.published.memory_rows import CONVERTERS
from benchmarks.published.rate_rows import TIMED_CONVERTERS

SETUPS = files("shardwise.catalog").joinpath("measurements", "setups.csv").read_text(encoding="utf-8")
FACTS = list(csv.DictReader(SETUPS.splitlines()))


def test_every_converted_family_has_cited_facts():
    assert set(CONVERTERS) <= {fact["family"] for fact in FACTS}


def test_every_family_with_rates_has_cited_facts():
    uncited = set(TIMED_CONVERTERS) - {fact["family"] for fact in FACTS}
    assert uncited <= {"MLM21T2", "NEM15"}, "their rows print everything that is used, or are shown with a gap"


def test_every_fact_has_a_source_and_a_date():
    for fact in FACTS:
        assert fact["fact"]
        assert ":" in fact["source"] or fact["source"].startswith("arXiv")
        assert len(fact["date"]) == 7

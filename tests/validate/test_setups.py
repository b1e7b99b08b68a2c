"""The facts behind the conversions."""

from benchmarks.published.memory_rows import CONVERTERS
from benchmarks.published.rate_rows import TIMED_CONVERTERS

from shardwise.validate.setups import setup_facts


def test_every_converted_family_has_cited_facts():
    assert set(CONVERTERS) <= {fact.family for fact in setup_facts()}


def test_every_family_with_rates_has_cited_facts():
    uncited = set(TIMED_CONVERTERS) - {fact.family for fact in setup_facts()}
    assert uncited <= {"MLM21T2", "NEM15"}, "their rows print everything that is used, or are shown with a gap"


def test_every_fact_has_a_source_and_a_date():
    for fact in setup_facts():
        assert fact.fact
        assert ":" in fact.source or fact.source.startswith("arXiv")
        assert len(fact.date) == 7

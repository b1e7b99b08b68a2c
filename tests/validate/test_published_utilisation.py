"""Published MFU and HFU follow from the published rates within 0.3 points, by each source's own convention."""

from collections import Counter

import pytest

from shardwise.validate.published_utilisation import COUNTINGS, NOT_RECOMPUTED, published_utilisations
from shardwise.validate.rows import read_rows


@pytest.mark.parametrize("family", COUNTINGS)
def test_every_published_utilisation_follows_from_its_rate(family):
    own = [check for check in published_utilisations().utilisations if check.family == family]
    assert own
    for check in own:
        assert abs(check.difference_fraction) <= 0.003, (check.id, check.kind)


def test_as_many_as_are_published_beside_a_rate():
    counts = Counter((check.family, check.kind) for check in published_utilisations().utilisations)
    assert counts == {
        ("LLMF", "MFU"): 216,
        ("LLMF", "HFU"): 216,
        ("KORTH", "MFU"): 5,
        ("KORTH", "HFU"): 4,
        ("MEGASC", "MFU"): 8,
        ("TTPERF", "MFU"): 11,
        ("NEM15", "MFU"): 3,
        ("MTNLG", "MFU"): 1,
        ("MISC", "MFU"): 1,
    }


def test_no_utilisation_is_passed_over_without_a_reason():
    printed = {
        row.id
        for row in read_rows("throughput")
        if row.number("mfu_pct") is not None or row.number("hfu_pct") is not None
    }
    checked = published_utilisations()
    assert printed == {row.id for row in (*checked.utilisations, *checked.unused)}
    assert all(row.reason for row in checked.unused)
    assert not set(COUNTINGS) & set(NOT_RECOMPUTED)


def test_the_conventions_differ_by_more_than_the_tolerance():
    """llm-foundry's count of a Korthikanti row would miss its MFU, so the check can fail."""
    row = next(row for row in read_rows("throughput") if row.id == "KORTH-004")
    own, foreign = COUNTINGS["KORTH"].model(row), COUNTINGS["MTNLG"].model(row)
    assert abs(foreign / own - 1) * 0.514 > 0.003

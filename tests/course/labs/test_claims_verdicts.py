"""What a measured number makes of a saying, at the ends of what can be measured."""

import pytest

from shardwise.claims import divides
from shardwise.course.labs.claims import Saying, compared


def verdict_of(measured, **saying):
    (claim,) = compared(Saying(says="said", source="somebody", unit="ratio", **saying), measured)
    return claim.verdict


@pytest.mark.parametrize(("measured", "verdict"), [(1.0, "right"), (0.95, "right"), (0.85, "wrong"), (0.1, "wrong")])
def test_what_divides_by_one_is_judged_as_well(measured, verdict):
    assert divides(1.0, measured) == verdict


@pytest.mark.parametrize(
    ("said", "without", "measured", "verdict"),
    [
        (3.0, 1.0, 3.1, "right"),
        (3.0, 1.0, 9.7, "loose"),
        (3.0, 1.0, 1.1, "loose"),
        (3.0, 1.0, 1.0, "wrong"),
        (3.0, 1.0, 0.5, "wrong"),
        (0.25, 0.0, 0.01, "loose"),
        (0.25, 0.0, -0.2, "wrong"),
    ],
)
def test_an_effect_of_another_size_is_loose_and_none_is_wrong(said, without, measured, verdict):
    assert verdict_of(measured, said_ratio=said, without_ratio=without) == verdict


@pytest.mark.parametrize(("measured", "verdict"), [(0.4, "right"), (0.9, "loose"), (1.0, "wrong")])
def test_an_upper_end_that_nothing_keeps_below_is_wrong(measured, verdict):
    assert verdict_of(measured, said_ratio=0.5, without_ratio=1.0, rule="at most") == verdict

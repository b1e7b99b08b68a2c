"""Words for what a plan gains and loses beside the recommended one."""

from dataclasses import replace

import pytest

from shardwise.search.price_list import PRICES
from shardwise.search.reasons import NOTEWORTHY_FRACTION, _share, _sum_text


def test_a_share_is_said_from_the_smallest_noteworthy_one_on():
    assert _share(NOTEWORTHY_FRACTION) == "0.5%"
    assert _share(0.99 * NOTEWORTHY_FRACTION) == "next to nothing"


@pytest.mark.parametrize(
    ("gains", "said"),
    [
        ((0.05, 0.02), "a (5.0%) + b (2.0%)"),
        ((0.05, 0.04, 0.03), "a (5.0%) + b (4.0%) + c (3.0%)"),
        ((0.05, 0.04, 0.03, 0.03, 0.02), "a (5.0%) + 4 more (12.0%)"),
    ],
)
def test_prices_that_are_named_add_up(gains, said):
    """Of "11.0% asked of it: short sequences in more than two parts (4.0%)" seven were unsaid."""
    prices = [replace(PRICES[0], name=name, gain_fraction=gain) for name, gain in zip("abcde", gains, strict=False)]
    assert _sum_text(prices) == said


def test_what_the_recommended_plan_pays_itself_is_taken_off():
    prices = [replace(PRICES[0], name=name, gain_fraction=gain) for name, gain in zip("ab", (0.1, 0.06), strict=True)]
    assert _sum_text(prices[:1], prices[1:], part=0.5) == "a (5.0%) - the recommended plan's own (3.0%)"

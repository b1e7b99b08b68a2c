"""Rank correlation within a sweep."""

import pytest

from shardwise.validate.rank_correlation import concordance, kendall_tau


def test_the_same_order_is_one_and_the_reverse_is_minus_one():
    assert kendall_tau([1.0, 2.0, 3.0, 5.0], [10.0, 11.0, 12.0, 13.0]) == 1.0
    assert kendall_tau([1.0, 2.0, 3.0, 5.0], [4.0, 3.0, 2.0, 1.0]) == -1.0


def test_one_swapped_pair_of_six_costs_a_third():
    assert kendall_tau([1.0, 2.0, 3.0, 4.0], [1.0, 3.0, 2.0, 4.0]) == pytest.approx(2 / 3)


def test_equal_measurements_say_nothing_and_equal_predictions_are_neither_right_nor_wrong():
    assert concordance([1.0, 1.0, 2.0], [1.0, 2.0, 3.0]) == (2, 2)
    assert concordance([1.0, 2.0, 3.0], [5.0, 5.0, 7.0]) == (2, 3)
    assert kendall_tau([1.0, 1.0], [1.0, 2.0]) is None

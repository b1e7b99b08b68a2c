"""Rank correlation within a sweep."""

from shardwise.validate.rank_correlation import concordance


def test_the_same_order_agrees_in_every_pair_and_the_reverse_in_none():
    assert concordance([1.0, 2.0, 3.0, 5.0], [10.0, 11.0, 12.0, 13.0]) == (6, 6)
    assert concordance([1.0, 2.0, 3.0, 5.0], [4.0, 3.0, 2.0, 1.0]) == (-6, 6)


def test_one_swapped_pair_of_six_costs_a_third():
    assert concordance([1.0, 2.0, 3.0, 4.0], [1.0, 3.0, 2.0, 4.0]) == (4, 6)


def test_equal_measurements_say_nothing_and_equal_predictions_are_neither_right_nor_wrong():
    assert concordance([1.0, 1.0, 2.0], [1.0, 2.0, 3.0]) == (2, 2)
    assert concordance([1.0, 2.0, 3.0], [5.0, 5.0, 7.0]) == (2, 3)
    assert concordance([1.0, 1.0], [1.0, 2.0]) == (0, 0)

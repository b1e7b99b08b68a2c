"""Arithmetic of one number and of columns gives the same."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.columns import (
    either,
    is_among,
    largest,
    least,
    most,
    negated,
    of_word,
    rounded,
    settled,
    whole,
)
from shardwise.columns import (
    given as given_where,
)

numbers = st.lists(st.tuples(st.integers(0, 2**50), st.integers(0, 2**50)), min_size=1, max_size=5)


@given(numbers)
def test_columns_are_compared_row_by_row(pairs):
    left, right = np.asarray(pairs, dtype=np.float64).T
    assert most(left, right).tolist() == [max(pair) for pair in pairs] == [most(*pair) for pair in pairs]
    assert least(left, right).tolist() == [min(pair) for pair in pairs] == [least(*pair) for pair in pairs]
    assert either(left > right, left, right).tolist() == [max(pair) for pair in pairs]
    assert given_where(left > right, left).tolist() == [a if a > b else 0 for a, b in pairs]
    assert largest([left, right]).tolist() == [max(pair) for pair in pairs]


@given(st.lists(st.floats(0, 2**50), min_size=1, max_size=5))
def test_columns_are_rounded_as_python_rounds(values):
    column = np.asarray(values)
    assert rounded(column).tolist() == [round(value) for value in values] == [rounded(value) for value in values]
    assert whole(column).tolist() == [int(value) for value in values] == [whole(value) for value in values]


def test_half_is_rounded_to_even():
    assert rounded(np.asarray([0.5, 1.5, 2.5])).tolist() == [0, 2, 2]
    assert [rounded(value) for value in (0.5, 1.5, 2.5)] == [0, 2, 2]


@pytest.mark.parametrize("condition", [True, False])
def test_a_condition_is_negated(condition):
    assert negated(condition) is not condition
    assert negated(np.asarray([condition, True])).tolist() == [not condition, False]


@pytest.mark.parametrize(("column", "word"), [([True, True], True), ([False, False], False), ([True, False], None)])
def test_a_condition_that_holds_everywhere_or_nowhere_is_one_word(column, word):
    found = settled(np.asarray(column))
    assert found is word if word is not None else found.tolist() == column


def test_a_word_is_looked_up():
    assert is_among("1f1b", ("gpipe", "1f1b")) is True
    assert is_among("zbv", ("gpipe", "1f1b")) is False
    assert of_word("full", {"none": 3, "full": 5}) == 5
    assert largest([]) == 0

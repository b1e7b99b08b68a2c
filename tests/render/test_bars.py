"""Stacked bars: cells add up, the capacity mark stands where the device ends, and nothing runs off the picture."""

from hypothesis import given
from hypothesis import strategies as st

from shardwise.render.bars import stacked_bar

SIZES = st.lists(st.integers(min_value=0, max_value=10**13), min_size=1, max_size=9)


def test_cells_are_proportional_to_the_parts():
    assert stacked_bar([20, 30, 50], capacity=100, longest=100, width=10).cells == (2, 3, 5)


def test_a_bar_below_capacity_ends_before_the_mark():
    bar = stacked_bar([30], capacity=100, longest=30, width=10)
    assert (bar.cells, bar.capacity_cell, bar.is_cut) == ((3,), 10, False)


def test_a_bar_above_capacity_passes_the_mark():
    bar = stacked_bar([125], capacity=100, longest=125, width=10)
    assert (bar.cells, bar.capacity_cell, bar.is_cut) == ((10,), 8, False)


def test_a_bar_of_more_than_twice_the_capacity_is_cut_and_says_so():
    bar = stacked_bar([1000], capacity=100, longest=1000, width=10)
    assert (bar.cells, bar.capacity_cell, bar.is_cut) == ((10,), 5, True)


@given(parts=SIZES, capacity=st.integers(min_value=0, max_value=10**13), width=st.integers(min_value=1, max_value=200))
def test_a_bar_never_leaves_the_picture(parts, capacity, width):
    bar = stacked_bar(parts, capacity=capacity, longest=sum(parts), width=width)
    assert min(bar.cells) >= 0
    assert sum(bar.cells) <= width
    assert 0 <= bar.capacity_cell <= width

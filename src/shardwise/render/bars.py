"""The geometry of stacked bars: how many character cells each part gets and where the capacity mark stands."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

LONGEST_BAR_RATIO = 2.0
"""A bar is drawn to at most this multiple of the capacity; what is beyond is cut and marked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A stacked bar in character cells."""

    cells: tuple[int, ...]
    """Cells of each part, in the order the parts were given."""
    capacity_cell: int
    """The first cell beyond the capacity."""
    is_cut: bool
    """Whether the bar is longer than there is room for."""


def stacked_bar(parts: Sequence[int], *, capacity: int, longest: int, width: int) -> Bar:
    """A bar of ``parts`` on a scale where all bars of a picture, the longest one included, fit ``width`` cells.

    Cells are rounded on the running sum, so that they never add up to more than the rounded whole.

    >>> stacked_bar([30, 30, 20], capacity=100, longest=80, width=10)
    Bar(cells=(3, 3, 2), capacity_cell=10, is_cut=False)
    >>> stacked_bar([30, 300], capacity=100, longest=330, width=10)
    Bar(cells=(2, 8), capacity_cell=5, is_cut=True)
    """
    whole = max(capacity, min(longest, int(LONGEST_BAR_RATIO * capacity)), 1)
    edges = [min(width, int(sum_so_far * width / whole + 0.5)) for sum_so_far in accumulate(parts, initial=0)]
    return Bar(
        cells=tuple(high - low for low, high in pairwise(edges)),
        capacity_cell=int(capacity * width / whole + 0.5),
        is_cut=sum(parts) > whole,
    )

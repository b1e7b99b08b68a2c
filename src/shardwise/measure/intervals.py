"""Unions and overlaps of intervals of time, as sorted arrays ``(count, 2)`` of seconds."""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from shardwise.units import Seconds

Intervals = NDArray[np.float64]
EMPTY: Intervals = np.zeros((0, 2))


def union(pairs: Iterable[tuple[float, float]]) -> Intervals:
    """Disjoint intervals that cover the same time, in order.

    >>> union([(0.0, 2.0), (1.0, 3.0), (5.0, 6.0)]).tolist()
    [[0.0, 3.0], [5.0, 6.0]]
    """
    given = np.array([pair for pair in pairs if pair[1] > pair[0]], dtype=np.float64).reshape(-1, 2)
    if not len(given):
        return EMPTY
    given = given[np.argsort(given[:, 0], kind="stable")]
    reach = np.maximum.accumulate(given[:, 1])
    begins = np.concatenate(([True], given[1:, 0] > reach[:-1]))
    first = np.flatnonzero(begins)
    last = np.concatenate((first[1:] - 1, [len(given) - 1]))
    return np.column_stack((given[first, 0], reach[last]))


def total_s(intervals: Intervals) -> float:
    """Seconds covered."""
    return float((intervals[:, 1] - intervals[:, 0]).sum())


def intersection(left: Intervals, right: Intervals) -> Intervals:
    """The time that both cover.

    >>> intersection(union([(0, 4)]), union([(1, 2), (3, 5)])).tolist()
    [[1.0, 2.0], [3.0, 4.0]]
    """
    return difference(left, difference(left, right))


def difference(left: Intervals, right: Intervals) -> Intervals:
    """The time that ``left`` covers and ``right`` does not.

    >>> difference(union([(0, 4)]), union([(1, 2), (3, 5)])).tolist()
    [[0.0, 1.0], [2.0, 3.0]]
    """
    if not len(left) or not len(right):
        return left
    edges = np.unique(np.concatenate((left.ravel(), right.ravel())))
    middles = (edges[:-1] + edges[1:]) / 2
    wanted = _covers(left, middles) & ~_covers(right, middles)
    pieces = np.column_stack((edges[:-1], edges[1:]))[wanted]
    return union(map(tuple, pieces.tolist()))  # joins pieces that touch


def clipped(intervals: Intervals, *, start_s: float, end_s: float) -> Intervals:
    """The part inside a window."""
    inside = np.clip(intervals, start_s, end_s)
    return inside[inside[:, 1] > inside[:, 0]]


def _covers(intervals: Intervals, moments: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Whether each moment lies inside one of the disjoint intervals."""
    index = np.searchsorted(intervals[:, 0], moments, side="right") - 1
    covered: NDArray[np.bool_] = (index >= 0) & (moments < intervals[np.maximum(index, 0), 1])
    return covered


def holds(intervals: Intervals, moment_s: Seconds) -> bool:
    """Whether a moment lies in one of the intervals; an end does not belong to it."""
    index = int(intervals[:, 0].searchsorted(moment_s, side="right")) - 1
    return index >= 0 and moment_s < float(intervals[index, 1])

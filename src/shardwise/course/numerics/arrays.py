"""Arrays of the re-enactments, and how far two of them are apart."""

from collections.abc import Iterable, Mapping
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[np.float64]
"""A floating-point array, of 64 or of 32 bits."""
Integers: TypeAlias = NDArray[np.int64]
Mask: TypeAlias = NDArray[np.bool_]
Arrays: TypeAlias = tuple[Array, ...]
WeightKey: TypeAlias = tuple[int, str]
"""A weight of a model: the number of its block, ``TABLES`` for tables, final norm and head; and its name there."""
Named: TypeAlias = dict[str, Array]
Weights: TypeAlias = dict[WeightKey, Array]

TABLES = -1


def relative_error(found: Array, expected: Array) -> float:
    """The largest difference, over the largest expected magnitude.

    >>> relative_error(np.array([1.0, 2.5]), np.array([1.0, 2.0]))
    0.25
    """
    if expected.size == 0:
        return 0.0
    scale = float(np.abs(expected).max())
    distance = float(np.abs(found - expected).max())
    return distance / scale if scale else distance


def worst_error(found: Mapping[WeightKey, Array], expected: Mapping[WeightKey, Array]) -> float:
    """The largest relative error of any weight."""
    return max(relative_error(found[key], expected[key]) for key in expected)


def even_pieces(length: int, num_pieces: int) -> tuple[slice, ...]:
    """``num_pieces`` slices of ``ceil(length / num_pieces)``, the last ones shorter or empty: as torch cuts tensors.

    >>> even_pieces(7, 3)
    (slice(0, 3, None), slice(3, 6, None), slice(6, 7, None))
    """
    size = -(-length // num_pieces)
    return tuple(slice(min(length, i * size), min(length, (i + 1) * size)) for i in range(num_pieces))


def distinct(arrays: Iterable[Array]) -> Arrays:
    """Each piece of memory once, whatever number of views there are of it."""
    return tuple({(array.ctypes.data, array.nbytes): array for array in arrays}.values())

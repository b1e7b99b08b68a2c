"""Single matrix products divided over ranks: by columns, by rows, and both around a nonlinearity.

Shapes: B rows of the input, D inputs, F outputs; d and f of one rank.

Source: Shoeybi et al. 2019, arXiv:1909.08053, section 3.
"""

from collections.abc import Sequence

import numpy as np

from shardwise.course.numerics.arrays import Array, Arrays, relative_error
from shardwise.course.numerics.exchange import exchange
from shardwise.course.numerics.layers import gate
from shardwise.course.numerics.tiny_model import FloatType


def column_parallel(x_BD: Array, weight_DF: Array, num_ranks: int) -> Array:
    """Each rank has some columns and computes some outputs; they are gathered side by side."""
    parts = [x_BD @ weight_Df for weight_Df in np.array_split(weight_DF, num_ranks, axis=1)]
    gathered = exchange("all_gather", [(part,) for part in parts])[0].received
    return np.concatenate(gathered, axis=1)


def row_parallel(x_Bd: Sequence[Array], weight_DF: Array) -> Array:
    """Each rank has some inputs and the rows that they meet, and computes a part of every output; they are added."""
    rows = np.array_split(weight_DF, len(x_Bd), axis=0)
    partial = [part @ weight_dF for part, weight_dF in zip(x_Bd, rows, strict=True)]
    return exchange("all_reduce", [(part,) for part in partial])[0].received[0]


def product_errors(*, num_ranks: int, width: int, dtype: FloatType, seed: int = 0) -> tuple[float, float, float]:
    """Errors against whole products: by columns, by rows, and columns, nonlinearity, rows with one exchange."""
    random = np.random.default_rng(seed)
    shapes = ((4, width), (width, width), (width, width))
    drawn: Arrays = tuple(random.standard_normal(shape).astype(dtype) for shape in shapes)
    x_BD, up_DF, down_FD = drawn
    whole_BF = x_BD @ up_DF
    rows = row_parallel(np.array_split(x_BD, num_ranks, axis=1), up_DF)
    hidden_Bf = [_activated(x_BD @ up_Df) for up_Df in np.array_split(up_DF, num_ranks, axis=1)]
    return (
        relative_error(column_parallel(x_BD, up_DF, num_ranks), whole_BF),
        relative_error(rows, whole_BF),
        relative_error(row_parallel(hidden_Bf, down_FD), _activated(whole_BF) @ down_FD),
    )


def _activated(x_BF: Array) -> Array:
    """A nonlinearity that keeps the width: SwiGLU of a tensor with itself."""
    return gate(x_BF, x_BF)

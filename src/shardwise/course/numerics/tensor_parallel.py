"""Tensor and sequence parallelism: what stands before a column-parallel product and after a row-parallel one.

A column-parallel matrix gives each rank some of the outputs; the following row-parallel one takes just those as its
inputs, so that nothing is exchanged between the two. Each rank then has a *part of the sum* of every output. One
all-reduce completes it; with sequence parallelism a reduce-scatter leaves each rank its part of the sequence, and an
all-gather stands before the next column-parallel product. The two are each other's backward.

Shapes: B sequences, S tokens (s of this rank where the sequence is divided), D hidden size.

Source: Shoeybi et al. 2019, arXiv:1909.08053, section 3; Korthikanti et al. 2022, arXiv:2205.05198, section 4.2.2.
"""

import numpy as np

from shardwise.course.numerics.arrays import Array
from shardwise.course.numerics.world import Program, Rank


def gather_sequence(rank: Rank, x_BsD: Array, *, name: str = "sequence parallel all_gather") -> Program[Array]:
    """The whole sequence: before column-parallel products, and of the gradient after a row-parallel one."""
    if not rank.layout.sequence_parallel or rank.layout.tp == 1:
        return x_BsD
    pieces = yield from rank.all_gather(x_BsD, rank.groups.tensor, name=name)
    return np.concatenate(pieces, axis=1)


def complete_sums(rank: Rank, partial_BSD: Array, *, name: str = "") -> Program[Array]:
    """The sum of all ranks' parts: after row-parallel products, and of the input gradient of column-parallel ones."""
    group = rank.groups.tensor
    if not rank.layout.sequence_parallel or rank.layout.tp == 1:
        return (yield from rank.all_reduce(partial_BSD, group, name=name or "tensor parallel all_reduce"))
    pieces = tuple(np.split(partial_BSD, group.size, axis=1))
    return (yield from rank.reduce_scatter(pieces, group, name=name or "sequence parallel reduce_scatter"))

"""Weights cut into vectors and joined again."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from shardwise.course.numerics.shards import Flattening
from shardwise.step.collective_calls import Group

SHAPES = st.lists(st.lists(st.integers(1, 7), min_size=1, max_size=3).map(tuple), min_size=1, max_size=4)


def flattening(shapes, size, by_tensor):
    return Flattening(
        name="test",
        shapes=tuple(((0, str(i)), shape) for i, shape in enumerate(shapes)),
        group=Group(axis="dp_shard", size=size, stride=1),
        by_tensor=by_tensor,
    )


@given(shapes=SHAPES, size=st.integers(1, 6), by_tensor=st.booleans())
def test_joining_what_was_cut_gives_the_weights_back(shapes, size, by_tensor):
    part = flattening(shapes, size, by_tensor)
    weights = {key: np.random.default_rng(1).standard_normal(shape) for key, shape in part.shapes}
    vectors = part.cut(weights)
    assert len(vectors) == size
    joined = part.join(vectors)
    assert all((joined[key] == weights[key]).all() for key in weights)


def test_by_tensor_each_rank_keeps_whole_rows_and_the_first_the_most():
    vectors = flattening([(5, 3), (2,)], 3, by_tensor=True).cut({(0, "0"): np.ones((5, 3)), (0, "1"): np.ones(2)})
    assert [vector.size for vector in vectors] == [6 + 1, 6 + 1, 3]


def test_in_line_the_ranks_cut_anywhere():
    vectors = flattening([(5, 3), (2,)], 3, by_tensor=False).cut({(0, "0"): np.ones((5, 3)), (0, "1"): np.ones(2)})
    assert [vector.size for vector in vectors] == [6, 6, 5]

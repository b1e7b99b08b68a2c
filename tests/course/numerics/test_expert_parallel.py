"""Routing, capacity and dropped copies."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from course.numerics.reenacted import EXACT, some_batches
from shapes import plan
from shardwise.course.numerics.expert_parallel import route
from shardwise.course.numerics.layers import softmax
from shardwise.course.numerics.reenact import Options, gradient_error, one_device, reenact
from shardwise.course.numerics.tiny_model import initial_weights, tiny_model
from shardwise.layout import Layout


@given(
    tokens=st.integers(1, 40),
    experts=st.integers(2, 6),
    per_token=st.integers(1, 2),
    capacity=st.one_of(st.none(), st.integers(1, 20)),
    seed=st.integers(0, 99),
)
def test_every_copy_is_sent_or_dropped_and_none_beyond_the_capacity(tokens, experts, per_token, capacity, seed):
    probabilities = softmax(np.random.default_rng(seed).standard_normal((tokens, experts)))
    routes = route(probabilities, per_token, capacity)
    assert routes.sent_X.sum() + routes.num_dropped == tokens * per_token
    assert len(routes.order_C) == routes.sent_X.sum()
    chosen = routes.experts_TK.reshape(-1)[routes.order_C]
    assert (np.diff(chosen) >= 0).all()
    if capacity is None:
        assert routes.num_dropped == 0
    else:
        assert routes.sent_X.max() <= capacity


def test_the_later_tokens_find_an_expert_full():
    routes = route(np.array([[0.9, 0.1]] * 3), 1, 2)
    assert routes.is_dropped_TK.reshape(-1).tolist() == [False, False, True]


@pytest.mark.parametrize("ratio", [0.5, 1.0])
def test_dropped_copies_change_the_gradient_by_as_much_as_on_one_rank(ratio):
    """Each rank fills its own capacity, so the equal of ranks is one rank that takes their parts in turn."""
    model = tiny_model(num_experts=4)
    spread = plan(model, layout=Layout(dp_shard=4, ep=4, zero_stage=0), seq_len=16, global_batch_size=4)
    alone = plan(model, layout=Layout(zero_stage=0), seq_len=16, global_batch_size=4)
    weights, batches = initial_weights(model), some_batches(model, 4, 16, 1)
    options = Options(capacity_ratio=ratio)
    found = reenact(spread, weights, batches, options)
    assert gradient_error(found, reenact(alone, weights, batches, options)) < EXACT
    assert gradient_error(found, one_device(spread, weights, batches)) > 1e-3


def test_a_capacity_that_is_large_enough_drops_nothing():
    model = tiny_model(num_experts=4)
    spread = plan(model, layout=Layout(dp_shard=2, ep=2, zero_stage=0), seq_len=16, global_batch_size=2)
    weights, batches = initial_weights(model), some_batches(model, 2, 16, 1)
    found = reenact(spread, weights, batches, Options(capacity_ratio=2.0))
    assert gradient_error(found, one_device(spread, weights, batches)) < EXACT

"""Messages of a token to nodes where a router keeps some groups of experts, against a simulation."""

import random
from statistics import mean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.formulas.collective_volume import once_per_node_ratio

NUM_DRAWS = 4000


def simulated_ratio(*, num_nodes, num_experts_per_tok, num_groups, num_groups_per_tok):
    """Nodes that hold a chosen expert, over the choices; nodes hold experts that follow one another."""
    draw, touched = random.Random(0), []
    for _ in range(NUM_DRAWS):
        kept = draw.sample(range(num_groups), num_groups_per_tok)
        chosen = [(draw.choice(kept) + draw.random()) / num_groups for _ in range(num_experts_per_tok)]
        touched.append(len({int(place * num_nodes) for place in chosen}))
    return mean(touched) / num_experts_per_tok


@pytest.mark.parametrize(
    ("num_nodes", "num_groups_per_tok"), [(5, 3), (20, 3), (12, 3), (3, 4), (12, 8), (8, 3), (4, 3), (16, 3)]
)
def test_nodes_and_groups_need_not_divide_each_other(num_nodes, num_groups_per_tok):
    """DeepSeek-V2, 3 of 8 groups kept: of 5 nodes 0.285 was computed where 0.47 are touched."""
    router = {"num_experts_per_tok": 6, "num_groups": 8, "num_groups_per_tok": num_groups_per_tok}
    expected = simulated_ratio(num_nodes=num_nodes, **router)
    assert once_per_node_ratio(num_nodes=num_nodes, **router) == pytest.approx(expected, rel=0.02)


@given(st.integers(1, 40), st.integers(1, 16), st.integers(1, 10), st.data())
def test_groups_never_spread_a_token_further_than_a_free_choice(num_nodes, num_groups, chosen, data):
    kept = data.draw(st.integers(1, num_groups))
    free = once_per_node_ratio(num_nodes=num_nodes, num_experts_per_tok=chosen)
    router = {"num_experts_per_tok": chosen, "num_groups": num_groups}
    limited = once_per_node_ratio(num_nodes=num_nodes, num_groups_per_tok=kept, **router)
    assert limited <= free + 1e-9
    every = once_per_node_ratio(num_nodes=num_nodes, num_groups_per_tok=num_groups, **router)
    assert every == pytest.approx(free)

"""Online softmax block by block against the softmax of all scores."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from course.numerics.reenacted import EXACT, both
from shardwise.course.numerics.arrays import relative_error
from shardwise.course.numerics.attention import by_kv_head, heads_of, start_attention
from shardwise.course.numerics.context_parallel import positions_of
from shardwise.course.numerics.reenact import Options
from shardwise.course.numerics.tiny_model import tiny_model
from shardwise.layout import Layout


def plain_attention(q, k, v):
    """Every head for itself, all scores at once."""
    length, share = q.shape[1], q.shape[2] // k.shape[2]
    out = np.zeros_like(q)
    for head in range(q.shape[2]):
        scores = q[:, :, head] @ k[:, :, head // share].swapaxes(1, 2) / np.sqrt(q.shape[-1])
        scores = np.where(np.tri(length, dtype=bool), scores, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        out[:, :, head] = weights / weights.sum(-1, keepdims=True) @ v[:, :, head // share]
    return out


@given(
    length=st.integers(1, 12),
    kv_heads=st.integers(1, 3),
    share=st.integers(1, 3),
    cuts=st.sets(st.integers(1, 11), max_size=3),
    seed=st.integers(0, 99),
)
def test_any_blocks_of_keys_give_the_whole_attention(length, kv_heads, share, cuts, seed):
    random = np.random.default_rng(seed)
    q = 3 * random.standard_normal((2, length, kv_heads * share, 4))
    k, v = (3 * random.standard_normal((2, length, kv_heads, 4)) for _ in range(2))
    attention = start_attention(q, np.arange(length), kv_heads)
    bounds = sorted({0, length, *(cut for cut in cuts if cut < length)})
    for first, last in itertools.pairwise(bounds):
        attention.add(k[:, first:last], v[:, first:last], np.arange(first, last))
    output, _ = attention.finish(q.shape[2])
    assert relative_error(output, plain_attention(q, k, v)) < EXACT
    assert attention.num_scores == share * length * (length + 1) // 2


def test_regrouping_heads_can_be_undone():
    x = np.random.default_rng(0).standard_normal((2, 5, 6, 4))
    assert (heads_of(by_kv_head(x, 3), 6) == x).all()


@pytest.mark.parametrize("cp", [2, 3, 4, 8])
def test_zigzag_parts_are_a_partition_with_equal_work(cp):
    parts = [positions_of(member=member, cp=cp, seq_len=4 * cp) for member in range(cp)]
    assert sorted(np.concatenate(parts).tolist()) == list(range(4 * cp))
    assert len({int(part.sum()) for part in parts}) == 1


@pytest.mark.parametrize("balance", ["zigzag", "contiguous"])
@pytest.mark.parametrize("engine", ["megatron", "fsdp2", "deepspeed"])
@pytest.mark.parametrize("cp", [2, 4])
def test_divided_sequences_give_the_gradients_of_whole_ones(engine, balance, cp):
    model = tiny_model(num_attention_heads=8, num_key_value_heads=4, hidden_size=32)
    layout = Layout(cp=cp, dp_shard=2, zero_stage=1)
    result = both(layout, engine=engine, model=model, num_sequences=5, options=Options(balance=balance))
    assert result.error < EXACT

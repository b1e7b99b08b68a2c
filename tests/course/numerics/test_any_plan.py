"""Any plan that keeps the rules computes what one device computes: random shapes, ranks and uneven shares."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from course.numerics.reenacted import EXACT, ROUNDING, both
from shardwise.course.numerics.reenact import Options
from shardwise.course.numerics.replicated_states import ReplicatedStates
from shardwise.course.numerics.tiny_model import tiny_model
from shardwise.errors import ShardwiseError
from shardwise.layout import Layout

ENGINES = ("fsdp2", "torchtitan", "megatron", "deepspeed", "fsdp1")


@st.composite
def layouts(draw):
    """Degrees of at most 16 ranks; whether an engine offers them is for the rules to say."""
    degrees = st.sampled_from((1, 1, 2))
    tp, cp, pp, replicas = draw(degrees), draw(degrees), draw(degrees), draw(degrees)
    dp_shard = draw(st.sampled_from((1, 2, 3)))
    schedule = draw(st.sampled_from(("gpipe", "1f1b", "interleaved", "zb-h1", "zbv"))) if pp > 1 else "1f1b"
    return Layout(
        tp=tp,
        cp=cp,
        pp=pp,
        vpp=2 if schedule == "interleaved" else 1,
        schedule=schedule,
        dp_replicate=replicas,
        dp_shard=dp_shard,
        ep=draw(st.sampled_from((1, dp_shard * cp))),
        zero_stage=draw(st.sampled_from((0, 1, 2, 3))),
        sequence_parallel=tp > 1 and draw(st.booleans()),
        reshard_after_forward=draw(st.booleans()),
    )


@st.composite
def models(draw, layout):
    kv_heads = layout.tp * draw(st.sampled_from((1, 2)))
    heads = kv_heads * draw(st.sampled_from((1, 3)))
    return tiny_model(
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        hidden_size=heads * draw(st.sampled_from((2, 4))),
        intermediate_size=layout.tp * draw(st.sampled_from((3, 5))),
        vocab_size=layout.tp * draw(st.sampled_from((7, 11))),
        num_hidden_layers=max(2, 2 * layout.pp),
        num_experts=layout.ep * 2 if layout.ep > 1 else draw(st.sampled_from((0, 3))),
    )


@st.composite
def cases(draw):
    layout = draw(layouts())
    micro_batches = 4 if layout.pp > 1 else draw(st.sampled_from((1, 2)))
    shares = tuple(
        tuple(draw(st.integers(1, 3)) for _ in range(micro_batches)) for _ in range(layout.data_parallel_size)
    )
    return layout, draw(models(layout)), draw(st.sampled_from(ENGINES)), shares


def run(case, dtype, num_steps=2):
    layout, model, engine, shares = case
    return both(
        layout,
        engine=engine,
        model=model,
        seq_len=8 * layout.cp,
        num_microbatches=len(shares[0]),
        num_sequences=sum(map(sum, shares)),
        num_steps=num_steps,
        dtype=dtype,
        options=Options(shares=shares),
        compile=False,
    )


@settings(max_examples=25)
@given(case=cases())
def test_every_plan_equals_one_device(case):
    try:
        result = run(case, "float64")
    except ShardwiseError:
        return
    assert result.error <= result.limit


MAGNIFIED = (
    Layout(dp_shard=2, zero_stage=1),
    tiny_model(
        num_attention_heads=1,
        num_key_value_heads=1,
        hidden_size=2,
        intermediate_size=3,
        vocab_size=7,
        num_experts=3,
    ),
    "megatron",
    ((3, 3), (1, 3)),
)
"""A router over two channels: after two steps it is off by 1.4e-12, and one device moved by a rounding by 6e-12."""


def test_rounding_that_is_magnified_is_held_to_what_one_device_shows():
    result = run(MAGNIFIED, "float64")
    assert EXACT < result.error <= result.limit < 1e-10


def test_a_rank_whose_gradient_is_missing_is_seen_where_rounding_is_magnified(monkeypatch):
    """Its twin: a limit that follows rounding follows no mistake."""
    add = ReplicatedStates.add

    def add_nothing(states, number, gradients):
        return add(states, number, {} if states.rank.number == 1 else gradients)

    monkeypatch.setattr(ReplicatedStates, "add", add_nothing)
    result = run(MAGNIFIED, "float64")
    assert result.error > 1e6 * result.limit


@settings(max_examples=20)
@given(case=cases())
def test_in_32_bits_gradients_equal_one_device_up_to_rounding(case):
    """Gradients of one step: AdamW divides by their size, and a router compares, so both magnify a rounding."""
    assume(case[1].moe is None)
    try:
        result = run(case, "float32", num_steps=1)
    except ShardwiseError:
        return
    assert result.found.gradients[0, "mlp.down_proj.weight"].dtype == np.float32
    assert result.gradient_error < ROUNDING


@pytest.mark.parametrize(("tp", "cp", "pp"), [(1, 1, 1), (2, 1, 1), (1, 2, 1), (1, 1, 2), (2, 2, 1), (2, 2, 2)])
def test_each_combination_of_model_parallelism_equals_one_device(tp, cp, pp):
    """Without these the property could be empty: the rules refuse some of what is drawn."""
    layout = Layout(tp=tp, cp=cp, pp=pp, dp_shard=2, zero_stage=1, sequence_parallel=tp > 1)
    assert both(layout, engine="megatron", num_microbatches=4).error < EXACT


@pytest.mark.parametrize("ep", [2, 4])
def test_all_kinds_of_parallelism_at_once(ep):
    """Thirty-two ranks: two replicas of two shards, two pieces of the sequence, two of every matrix, two stages."""
    layout = Layout(
        dp_replicate=2, dp_shard=2, cp=2, tp=2, pp=2, ep=ep, zero_stage=1, sequence_parallel=True, schedule="1f1b"
    )
    result = both(layout, engine="megatron", model=tiny_model(num_experts=4), num_microbatches=4, num_sequences=17)
    assert len(result.found.ranks) == 32
    assert result.error < EXACT

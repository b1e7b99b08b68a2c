"""The small functions that say which degrees a model allows."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rules.samples import llama_8b, llama_30b, mixtral, qwen2_7b
from shardwise.rules import (
    head_tp_degrees,
    valid_cp_degrees,
    valid_ep_degrees,
    valid_expert_tp_degrees,
    valid_pp_degrees,
    valid_tp_degrees,
)
from shardwise.rules.degrees import divisors, nearest_first
from shardwise.rules.stages import stage_layers_for_vpp


@given(st.integers(1, 5000))
def test_divisors_are_exactly_the_numbers_that_divide(number):
    assert divisors(number) == tuple(n for n in range(1, number + 1) if number % n == 0)


def test_nearest_is_measured_in_ratios():
    assert nearest_first((1, 2, 3, 6, 12, 24), 6) == (6, 3, 12, 2, 24, 1)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "strict", "replicated"),
    [
        (32, 8, (1, 2, 4, 8), (1, 2, 4, 8, 16, 32)),
        (64, 8, (1, 2, 4, 8), (1, 2, 4, 8, 16, 32, 64)),
        (71, 1, (1,), (1, 71)),
        (9, 3, (1, 3), (1, 3, 9)),
        (40, 8, (1, 2, 4, 8), (1, 2, 4, 8, 40)),
        (25, 25, (1, 5, 25), (1, 5, 25)),
    ],
)
def test_heads_and_key_value_heads_decide_tp(heads, kv_heads, strict, replicated):
    """Llama-3-8B and 70B, Falcon-7B, SmolLM-135M, Qwen2.5-14B, GPT-2 XL."""
    given_heads = {"num_attention_heads": heads, "num_key_value_heads": kv_heads}
    assert head_tp_degrees(**given_heads) == strict
    assert head_tp_degrees(**given_heads, replicates_kv_heads=True) == replicated


def test_widths_limit_tp_further_than_heads():
    """18944 / 28 is not whole, so Qwen2-7B cannot be divided by 28 even where key-value heads are replicated."""
    assert valid_tp_degrees(qwen2_7b(), replicates_kv_heads=True) == (1, 2, 4)
    assert valid_tp_degrees(llama_8b()) == (1, 2, 4, 8)
    assert valid_tp_degrees(llama_8b(), replicates_kv_heads=True) == (1, 2, 4, 8, 16, 32)
    assert valid_tp_degrees(llama_30b()) == (1, 2, 4)


def test_pipeline_degrees_leave_every_chunk_something():
    """Ten layers, an embedding and a head are twelve pieces at most."""
    model = llama_8b(num_layers=10)
    assert valid_pp_degrees(model) == tuple(range(1, 13))
    assert valid_pp_degrees(model, chunks_per_stage=3) == (1, 2, 3, 4)
    assert valid_pp_degrees(model, even=True) == (1, 2, 5, 10)
    assert valid_pp_degrees(model, chunks_per_stage=2, even=True) == (1, 5)


def test_expert_degrees_divide_experts_and_their_width():
    assert valid_ep_degrees(mixtral()) == (1, 2, 4, 8)
    assert valid_ep_degrees(llama_8b()) == (1,)
    assert 7 in valid_expert_tp_degrees(mixtral())
    assert 3 not in valid_expert_tp_degrees(mixtral())


def test_context_parallel_degrees_need_two_stripes_each_when_zigzag():
    assert valid_cp_degrees(12) == (1, 2, 3, 6)
    assert valid_cp_degrees(12, is_zigzag=False) == (1, 2, 3, 4, 6, 12)
    assert valid_cp_degrees(7) == (1,)


@given(st.integers(1, 300), st.integers(1, 24), st.integers(1, 6))
def test_a_layout_for_vpp_places_every_layer_in_multiples_of_vpp(num_layers, pp, vpp):
    counts = stage_layers_for_vpp(num_layers=num_layers, pp=pp, vpp=vpp)
    if counts is None:
        assert num_layers % vpp or num_layers < pp * vpp
    else:
        assert (len(counts), sum(counts)) == (pp, num_layers)
        assert all(count > 0 and count % vpp == 0 for count in counts)
        assert max(counts) - min(counts) in (0, vpp)

"""Where our trainer divides a vocabulary and exchanges gradients, at the limits."""

from itertools import combinations

import pytest

import shapes
from shardwise.layout import Layout
from shardwise.recipe import Recipe
from shardwise.step.native_engine import (
    can_exchange_gradients,
    can_spread_vocabulary,
    exchanges_gradients,
    is_in_one_domain,
    spreads_vocabulary,
)
from shardwise.step.own_host import adapter_calls, recompute_calls

RECIPE = Recipe(seq_len=4096)


def plan_of(*, vocab_size=128_256, **layout):
    layer = shapes.llama_3_8b().layers[0]
    model = shapes.model(layer, num_layers=4, hidden_size=4096, vocab_size=vocab_size)
    return shapes.plan(model, layout=Layout(**layout))


@pytest.mark.parametrize(("rows", "spreads"), [(8 * 4096 - 8, False), (8 * 4096, True), (8 * 4096 + 8, True)])
def test_a_vocabulary_is_divided_where_tokens_are_no_more_than_its_rows(rows, spreads):
    assert spreads_vocabulary(plan_of(vocab_size=rows, dp_shard=8)) is spreads


def test_a_vocabulary_is_divided_over_data_parallel_ranks_alone():
    def can(vocab_size=128_256, **layout):
        return can_spread_vocabulary(layout=Layout(**layout), recipe=RECIPE, vocab_size=vocab_size)

    assert can(dp_shard=8)
    assert not can(dp_shard=1)
    assert not can(dp_shard=8, zero_stage=2)
    assert not can(dp_shard=8, vocab_size=1001)
    axes = ("tp", "pp", "cp", "ep", "dp_replicate")
    for chosen in (*combinations(axes, 1), *combinations(axes, 2)):
        assert not can(dp_shard=8, **dict.fromkeys(chosen, 2))


@pytest.mark.parametrize(
    ("layout", "exchanges"),
    [
        ({"dp_shard": 2}, True),
        ({"dp_shard": 8}, True),
        ({"dp_shard": 9}, False),
        ({"dp_shard": 4, "cp": 2}, True),
        ({"dp_shard": 1}, False),
        ({"dp_shard": 8, "zero_stage": 2}, True),
        ({"dp_shard": 8, "zero_stage": 1}, False),
        ({"dp_shard": 8, "ep": 2}, False),
        ({"dp_shard": 4, "pp": 2}, False),
    ],
)
def test_up_to_eight_ranks_that_divide_gradients_exchange_them(layout, exchanges):
    assert bool(can_exchange_gradients(Layout(**layout), RECIPE)) is exchanges


def test_ranks_of_one_domain_are_at_most_as_many_as_its_gpus():
    """Eight GPUs a host: four ranks of two tensor-parallel ones each fill it."""
    assert is_in_one_domain(plan_of(dp_shard=8))
    assert is_in_one_domain(plan_of(dp_shard=4, tp=2))
    assert not is_in_one_domain(plan_of(dp_shard=8, tp=2))
    assert not is_in_one_domain(plan_of(dp_shard=16))
    assert exchanges_gradients(plan_of(dp_shard=4, tp=2))
    assert not exchanges_gradients(plan_of(dp_shard=4, tp=4))


def test_checkpointing_looks_at_more_operators_of_adapted_and_packed_matrices():
    """Selective 105 and 88 kernels, 11 and 16 more for an adapted matrix, 22 and 15 for a 4-bit one; full 63 and 7."""

    def calls(kind, *, tp=1, on_parts=True, **matrices):
        recipe = Recipe(seq_len=1, recompute=kind, compile=False)
        return recompute_calls(recipe, Layout(tp=tp), computes_on_parts=on_parts, **matrices)

    assert calls("none", adapted=7, packed=7) == (0, 0)
    assert calls("selective") == (105, 88)
    assert calls("selective", adapted=7) == (105 + 7 * 11, 88 + 7 * 16)
    assert calls("selective", adapted=7, packed=3) == (105 + 7 * 11 + 3 * 22, 88 + 7 * 16 + 3 * 15)
    assert calls("full", adapted=7) == (0, 63 + 7 * 7)
    assert calls("full", tp=2) == (0, 63 + 25)
    assert calls("full", tp=2, on_parts=False) == (0, 63 + 190)
    assert calls("full", on_parts=False) == (0, 63)
    assert adapter_calls(adapted=7, packed=2) == (7 * 3 + 2 * 2, 7 * 1 + 2 * 6)

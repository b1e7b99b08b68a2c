"""Which blocks a stage holds and how much of a weight a rank holds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shapes import dense_layer, llama_3_8b, model
from shardwise.layout import Layout
from shardwise.model import Weight
from shardwise.step.layer_placement import (
    chunk_owner,
    local_num_params,
    pipeline_stages,
    spread_layers,
    tensor_shards,
)


@pytest.mark.parametrize(
    ("num_layers", "num_chunks", "expected"),
    [
        (126, 8, (15, 16, 16, 16, 16, 16, 16, 15)),  # Llama 3 405B, arXiv:2407.21783 section 3.3.2
        (30, 4, (7, 8, 8, 7)),
        (80, 16, (5,) * 16),
        (31, 8, (4, 4, 4, 4, 4, 4, 4, 3)),
    ],
)
def test_uneven_depths_spare_the_stages_with_embedding_and_head(num_layers, num_chunks, expected):
    assert spread_layers(num_layers=num_layers, num_chunks=num_chunks) == expected


@given(num_layers=st.integers(1, 200), num_chunks=st.integers(1, 64))
def test_spreading_loses_no_layer_and_differs_by_at_most_one(num_layers, num_chunks):
    counts = spread_layers(num_layers=num_layers, num_chunks=num_chunks)
    assert sum(counts) == num_layers
    assert max(counts) - min(counts) <= 1


def test_interleaved_chunks_go_round_robin_and_v_shaped_ones_come_back():
    interleaved = Layout(pp=4, vpp=2, schedule="interleaved")
    assert [chunk_owner(chunk=chunk, layout=interleaved) for chunk in range(8)] == [0, 1, 2, 3, 0, 1, 2, 3]
    v_shaped = Layout(pp=4, schedule="zbv")
    assert [chunk_owner(chunk=chunk, layout=v_shaped) for chunk in range(8)] == [0, 1, 2, 3, 3, 2, 1, 0]


def test_v_shaped_schedules_put_embedding_and_head_on_the_first_stage():
    stages = pipeline_stages(model=llama_3_8b(), layout=Layout(pp=4, schedule="zbv"))
    assert [(stage.has_embedding, stage.has_head) for stage in stages] == [
        (True, True),
        (False, False),
        (False, False),
        (False, False),
    ]
    assert [stage.num_layers for stage in stages] == [8, 8, 8, 8]


def test_stated_stage_layers_are_kept():
    stages = pipeline_stages(model=llama_3_8b(), layout=Layout(pp=4, stage_layers=(7, 9, 9, 7)))
    assert [stage.num_layers for stage in stages] == [7, 9, 9, 7]


def test_different_blocks_stay_in_their_order():
    narrow = dense_layer(hidden_size=64, intermediate_size=128, heads=4, kv_heads=4)
    wide = dense_layer(hidden_size=64, intermediate_size=256, heads=4, kv_heads=4)
    spec = model(narrow, num_layers=3, hidden_size=64, vocab_size=101)
    mixed = type(spec)(
        name="mixed",
        model_type="llama",
        hidden_size=64,
        vocab_size=101,
        max_position_embeddings=64,
        layers=(narrow, wide, wide, narrow),
        embedding_weights=spec.embedding_weights,
    )
    first, second = pipeline_stages(model=mixed, layout=Layout(pp=2))
    assert [count for _, count in first.chunks[0].layer_runs] == [1, 1]
    assert second.chunks[0].layer_runs[0][0] is wide


def test_key_and_value_weights_are_duplicated_beyond_their_heads():
    weight = Weight(name="k_proj.weight", shape=(1024, 4096), split="column", split_limit=8)
    assert tensor_shards(weight, Layout(tp=16)) == 8
    assert local_num_params(weight, Layout(tp=16)) == 1024 * 4096 // 8


def test_norms_stay_whole_and_experts_divide_by_ep_and_expert_tp():
    norm = Weight(name="norm.weight", shape=(4096,), split="replicated", role="norm")
    experts = Weight(name="experts.up", shape=(64, 1408, 2048), split="column", is_expert=True)
    layout = Layout(tp=4, ep=8, expert_tp=2, dp_shard=8)
    assert local_num_params(norm, layout) == 4096
    assert local_num_params(experts, layout) == 64 * 1408 * 2048 // 16

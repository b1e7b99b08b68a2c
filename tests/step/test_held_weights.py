"""Elements one rank holds of a unit."""

from shapes import dense_layer, moe_layer
from shardwise.layout import Layout
from shardwise.model import Weight
from shardwise.step.held_weights import Division, adapter_weights, hold


def test_fsdp2_gives_the_first_rank_the_larger_ceil_chunk():
    """Five rows on four ranks are chunks of 2, 2, 1 and 0 rows (torch 2.13, a 5 x 7 weight)."""
    weight = Weight(name="w", shape=(5, 7), split="replicated")
    assert hold((weight,), Division.of(Layout(dp_shard=4)), is_sharded_by_tensor=True).shard == 14
    assert hold((weight,), Division.of(Layout(dp_shard=4)), is_sharded_by_tensor=False).shard == 9


def test_a_llama_3_8b_block_divides_by_tp_except_its_norms():
    layer = dense_layer(hidden_size=4096, intermediate_size=14336, heads=32, kv_heads=8)
    whole = hold(layer.weights, Division.of(Layout()), is_sharded_by_tensor=True)
    half = hold(layer.weights, Division.of(Layout(tp=2)), is_sharded_by_tensor=True)
    assert whole.full == 218_112_000
    assert half.full == (218_112_000 - 2 * 4096) // 2 + 2 * 4096


def test_context_parallel_ranks_share_states():
    layer = dense_layer(hidden_size=4096, intermediate_size=14336, heads=32, kv_heads=8)
    wide = hold(layer.weights, Division.of(Layout(dp_shard=2, cp=4)), is_sharded_by_tensor=False)
    assert wide.shard == 218_112_000 // 8


def test_experts_are_sharded_over_what_expert_parallelism_leaves():
    layer = moe_layer(hidden_size=2048, expert_size=768, heads=32, kv_heads=4, experts=128, per_token=8)
    held = hold(layer.weights, Division.of(Layout(dp_shard=16, ep=8)), is_sharded_by_tensor=True)
    assert held.expert == 3 * 128 * 768 * 2048 // 8
    assert held.expert_shard == held.expert // 2


def test_lora_adds_rank_times_in_plus_out_per_target():
    """Rank 16 on q, k, v, o of Llama-3-8B: 16 (4096 + 4096) twice and 16 (4096 + 1024) twice per block."""
    layer = dense_layer(hidden_size=4096, intermediate_size=14336, heads=32, kv_heads=8)
    added = adapter_weights(layer, rank=16, targets="attention")
    assert sum(weight.num_params for weight in added) == 2 * 16 * 8192 + 2 * 16 * 5120
    every = adapter_weights(layer, rank=16, targets="all-linear")
    assert sum(w.num_params for w in every) == 425_984 + 3 * 16 * (4096 + 14336)


def test_adafactor_keeps_rows_and_columns_of_matrices_and_whole_vectors():
    weights = (
        Weight(name="w", shape=(11, 13), split="replicated"),
        Weight(name="n", shape=(17,), split="replicated", role="norm"),
    )
    assert hold(weights, Division.of(Layout()), is_sharded_by_tensor=False).factored == 11 + 13 + 17

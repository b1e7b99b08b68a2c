"""A trace is what a run does: collectives of real processes, memory by hand."""

from collections import Counter
from dataclasses import replace

import pytest

from shardwise.layout import Layout
from shardwise.train.tracing.run_rank import trace_rank
from shardwise.train.tracing.trace_job import _groups, trace_job
from train.models import make_job
from train.tracing.held import held
from train.world_member import count


@pytest.mark.parametrize(
    "case",
    [
        {"layout": {"dp_replicate": 2, "zero_stage": 0}, "micro_batch_size": 2},
        {"layout": {"dp_shard": 2}, "recompute": "full", "micro_batch_size": 2},
        {"layout": {"tp": 2, "sequence_parallel": True}},
        {"layout": {"pp": 2}, "chunk_layers": (2, 2)},
    ],
    ids=str,
)
def test_traced_collectives_are_those_of_real_processes(worlds, case):
    job = make_job(num_steps=3, **case)
    for rank, calls in enumerate(worlds[2].run(count, job)):
        log = trace_rank(job, rank=rank).log
        traced = Counter((call.kind, len(call.ranks), call.num_bytes) for call in log.calls)
        assert traced == {(call.kind, call.group_size, call.num_bytes): times for call, times in calls}


def test_states_are_the_bytes_of_their_elements():
    """fp32 and AdamW: 180,800 weights of 4 bytes over 4 ranks, twice as much for moments, and once for gradients."""
    summary = trace_job(replace(make_job(layout={"dp_shard": 4}), device="cuda"))[0].summary
    optimizer = held(summary, "optimizer")
    num_units = 7  # whose squared norm is known since their backward: one number each, rounded up to 512 bytes
    assert optimizer["gradients"] == pytest.approx(180_800 + 512 * num_units, rel=0.02)
    assert optimizer["parameters"] == pytest.approx(180_800 + 2 * 32 * 4 * 4, rel=0.05)
    num_step_counts = 39  # one scalar for every weight, rounded up to 512 bytes
    assert optimizer["optimizer"] == pytest.approx(2 * 180_800 + 512 * num_step_counts, rel=0.03)


def test_the_logits_of_a_piece_are_held_in_two_bytes_and_four_and_become_their_gradient():
    """bf16: 6 bytes for each of 4,096 tokens times 256 words."""
    job = make_job(layout={"dp_shard": 2}, precision="bf16-mixed", seq_len=4096, micro_batch_size=1)
    assert held(trace_job(job)[0].summary, "loss")["logits"] == 6 * 4096 * 256


def test_recomputation_keeps_one_tensor_a_block_and_repeats_all_products_but_the_last():
    """Per block 36,864 weights in products, of which the down projection has 8,192: nothing needs its output again."""
    job = make_job(layout={"dp_shard": 2}, precision="bf16-mixed", seq_len=2048)
    plain, recomputed = (
        trace_job(replace(job, recipe=replace(job.recipe, recompute=mode)))[0].summary for mode in ("none", "full")
    )
    assert held(recomputed, "forward")["activations"] < held(plain, "forward")["activations"] / 8
    again = sum(flop for key, flop in recomputed.flop.items() if (key.phase, key.operator) == ("recompute", "mm"))
    num_tokens, num_blocks = 4 * 2048, 4
    assert again == 2 * num_tokens * num_blocks * (36_864 - 8_192)


def test_matrix_products_do_six_flop_per_weight_and_token():
    job = make_job(layout={"dp_shard": 2})
    summary = trace_job(job)[0].summary
    products = sum(flop for key, flop in summary.flop.items() if key.operator in ("mm", "addmm_"))
    weights = 180_800 - 256 * 64 - 9 * 64  # all but the token table and the norms
    assert products == 6 * weights * 32 * 4


def test_stages_that_differ_are_traced():
    job = make_job(layout={"pp": 4}, chunk_layers=(1, 1, 1, 1))
    assert [stage.stage for stage in trace_job(job)] == [0, 1, 3]


@pytest.mark.parametrize(
    ("layout", "rank", "ranks"),
    [
        ({"dp_shard": 4, "ep": 2}, 0, (0, 2)),
        ({"dp_shard": 4, "ep": 2}, 3, (1, 3)),
        ({"dp_shard": 4, "tp": 2, "ep": 2}, 1, (1, 3, 5, 7)),
        ({"dp_shard": 2, "ep": 2}, 1, (1,)),
    ],
    ids=str,
)
def test_ranks_that_hold_parts_of_the_same_experts_are_one_group_apart(layout, rank, ranks):
    assert dict(_groups(Layout(**layout), rank))["expert_shards"] == ranks

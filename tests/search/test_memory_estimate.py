"""The memory of every row is that of the full prediction, to rounding where all blocks are alike."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.predict.memory import predict_memory
from shardwise.search.bounds import IntRange, SearchBounds
from shardwise.search.host_memory import fits_host
from shardwise.search.memory_estimate import MemoryEstimate
from shardwise.search.pool import highest_choice
from shardwise.search.probes import Probes, other_stages
from shardwise.search.space import Space
from shardwise.search.validity import valid_candidates

ALIKE, ALTERNATING = 0.002, 0.03
"""Largest error as a share of what is needed. Blocks that alternate between shapes are taken to be sorted by shape,
which changes what is alive while one of them runs backward."""
QUESTIONS = [
    ({"model": "llama-3.1-8b", "cluster": "16xh100-sxm", "engine": "native"}, ALIKE),
    ({"model": "llama-3.1-8b", "cluster": "16xh100-sxm", "engine": "megatron"}, ALIKE),
    ({"model": "mixtral-8x7b", "cluster": "16xh100-sxm", "engine": "megatron"}, ALIKE),
    ({"model": "llama-3.1-8b", "cluster": "8xh100-sxm", "engine": "deepspeed"}, ALIKE),
    ({"model": "qwen3-30b-a3b", "cluster": "8xh100-sxm", "engine": "torchtitan"}, ALIKE),
    ({"model": "llama-3.1-8b", "cluster": "8xh100-sxm", "engine": "fsdp1", "adapter": "qlora"}, ALIKE),
    ({"model": "gemma-2-9b", "cluster": "8xh100-sxm", "engine": "native", "optimizer": "adamw-8bit"}, ALTERNATING),
]


def sampled(pool, size, seed=7):
    return np.random.default_rng(seed).choice(len(pool), size=min(size, len(pool)), replace=False)


@pytest.mark.parametrize(("asked", "tolerance"), QUESTIONS, ids=lambda asked: str(asked)[:60])
def test_the_estimate_is_what_the_prediction_says_is_needed(make_question, decorated, asked, tolerance):
    question = make_question(**asked)
    pool = decorated(question, activation_offload=False)
    for row in sampled(pool, 120):
        plan = pool.rows.plan(int(row), question=question)
        needed_bytes = predict_memory(plan).needed_bytes
        assert pool.needed_bytes[row] == pytest.approx(needed_bytes, rel=tolerance), plan.layout


@pytest.mark.parametrize(
    ("model", "engine", "tolerance"),
    [
        ("llama-3.1-8b", "native", 1e-4),
        ("llama-3.1-8b", "deepspeed", 1e-4),
        ("llama-3.1-8b", "megatron", 0.008),  # activations on the host leave two blocks' worth, of each run of blocks
        ("deepseek-v2-lite", "native", 0.008),
        ("qwen3-8b", "torchtitan", 0.002),
    ],
)
def test_the_estimate_follows_part_recomputation_and_offload(make_question, decorated, model, engine, tolerance):
    question = make_question(model=model, engine=engine, cluster="16xh100-sxm")
    pool = decorated(question, recompute=("selective", "full"))
    rows = sampled(pool, 50)
    layers = np.asarray([1, 2, 3, 7, 15])[np.arange(len(rows)) % 5]
    some = replace(
        pool.rows.take(rows),
        recompute_layers=layers,
        activation_offload=np.arange(len(rows)) % 2,
        offload=np.where(pool.rows.offload_choices[rows] & 2, 1, 0),
    )
    memory = MemoryEstimate(probes=Probes(question=question))
    needed = memory.device_bytes(some, num_microbatches=pool.num_microbatches[rows])
    for row in range(len(rows)):
        plan = some.plan(row, question=question)
        needed_bytes = predict_memory(plan).needed_bytes
        assert needed[row] == pytest.approx(needed_bytes, rel=tolerance), (plan.layout, plan.recipe)


def test_experts_are_whole_where_our_trainer_keeps_dense_weights_whole(make_question, decorated):
    """One data-parallel rank, and experts in fewer parts than there are tensor-parallel ranks."""
    question = make_question(model="mixtral-8x7b", cluster="16xh100-sxm", global_batch_size=16)
    one, four = IntRange(low=1, high=1), IntRange(low=4, high=4)
    pool = decorated(question, tp=four, pp=four, cp=one, ep=IntRange(low=1, high=2), activation_offload=False)
    pool = pool.take((pool.rows.zero_stage > 0) & (pool.rows.expert_tp < 4))
    assert len(pool)
    for row in sampled(pool, 20):
        plan = pool.rows.plan(int(row), question=question)
        assert pool.needed_bytes[row] == pytest.approx(predict_memory(plan).needed_bytes, rel=ALIKE), plan.layout


@pytest.mark.parametrize("engine", ["torchtitan", "native"])
def test_stages_of_experts_behind_longer_ones_of_dense_blocks_are_weighed(make_question, decorated, engine):
    """61 blocks on 32 stages: one dense block, then two, then two with experts a stage, which hold most."""
    question = make_question(
        model="deepseek-v3-671b", cluster="256xhgx-h800", engine=engine, seq_len=4096, global_batch_size=15360
    )
    one = IntRange(low=1, high=1)
    pipeline = {"pp": IntRange(low=32, high=32), "cp": one, "dp_replicate": one, "micro_batch_size": one}
    pool = decorated(question, **pipeline, offload=("none",), activation_offload=False)
    for row in sampled(pool, 20):
        plan = pool.rows.plan(int(row), question=question)
        assert pool.needed_bytes[row] == pytest.approx(predict_memory(plan).needed_bytes, rel=ALIKE), plan.layout


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 1)), min_size=1, max_size=12))
def test_every_stage_between_the_ends_holds_no_more_than_a_watched_one_before_it(counts):
    watched = [index for index in (1, *other_stages(counts)) if index < len(counts) - 1]
    for index in range(1, len(counts) - 1):
        assert any(
            before <= index and all(held >= own for held, own in zip(counts[before], counts[index], strict=True))
            for before in watched
        )


@pytest.mark.parametrize("precision", ["bf16", "bf16-mixed"])
def test_the_estimate_knows_pipelines_whose_forward_passes_come_first(make_question, decorated, precision):
    question = make_question(global_batch_size=8, precision=precision)
    pool = decorated(question, pp=IntRange(low=2, high=4), schedule=("1f1b", "gpipe"), activation_offload=False)
    for row in sampled(pool, 80):
        plan = pool.rows.plan(int(row), question=question)
        needed_bytes = predict_memory(plan).needed_bytes
        assert pool.needed_bytes[row] == pytest.approx(needed_bytes, rel=ALIKE), (plan.layout, plan.recipe)


@pytest.mark.parametrize("model", ["llama-3.1-8b", "qwen3-30b-a3b"])
def test_the_estimate_knows_two_copies_of_the_model(make_question, decorated, model):
    question = make_question(model=model, cluster="16xh100-sxm", engine="hai-llm", compile=False)
    pool = decorated(question, schedule=("dualpipe",), pp=IntRange(low=2, high=16), activation_offload=False)
    for row in sampled(pool, 60):
        plan = pool.rows.plan(int(row), question=question)
        assert pool.needed_bytes[row] == pytest.approx(predict_memory(plan).needed_bytes, rel=ALIKE), plan.layout


@pytest.mark.parametrize("precision", ["bf16", "bf16-mixed"])
@pytest.mark.parametrize("global_batch_size", [1, 4])
def test_what_one_rank_moves_to_the_host_is_estimated_as_predicted(make_question, precision, global_batch_size):
    """Plain weights on one rank are left to DDP, but gathered unit by unit when they come from the host."""
    asked = {"precision": precision, "global_batch_size": global_batch_size}
    question = make_question(model="llama-3.2-1b", cluster="1xh100-sxm", seq_len=1024, **asked)
    valid = valid_candidates(Space(question=question, bounds=SearchBounds(micro_batch_size=IntRange(low=1, high=1))))
    rows = replace(valid.rows, offload=highest_choice(valid.rows))
    needed = MemoryEstimate(probes=Probes(question=question)).device_bytes(
        rows, num_microbatches=valid.num_microbatches
    )
    assert set(rows.offload.tolist()) == {0, 1, 2}
    for row in range(len(rows)):
        plan = rows.plan(row, question=question)
        assert needed[row] == pytest.approx(predict_memory(plan).needed_bytes, rel=0.003), (plan.layout, plan.recipe)


def test_offloaded_states_leave_the_device(make_question, decorated):
    question = make_question()
    kept = decorated(question, recompute=("full",), offload=("none",))
    moved = decorated(question, recompute=("full",), offload=("optimizer",))
    assert moved.needed_bytes.min() < kept.needed_bytes.min()


def test_no_rows_need_no_memory(make_question, decorated):
    question = make_question()
    nothing = decorated(question).rows.take(np.zeros(0, dtype=np.int64))
    memory = MemoryEstimate(probes=Probes(question=question))
    assert len(memory.device_bytes(nothing, num_microbatches=np.zeros(0, dtype=np.int64))) == 0


@pytest.mark.parametrize(
    ("engine", "cluster"), [("native", "16xh100-sxm"), ("deepspeed", "16xh100-sxm"), ("megatron", "16xl40s")]
)
def test_the_estimate_knows_which_hosts_hold_what_moves_there(make_question, decorated, engine, cluster):
    question = make_question(engine=engine, cluster=cluster, global_batch_size=256)
    pool = decorated(question, recompute=("none", "full"))
    pool = pool.take(sampled(pool, 200))
    modes = np.asarray(
        [[mode for mode in range(4) if choices >> mode & 1][-1] for choices in pool.rows.offload_choices]
    )
    rows = replace(pool.rows, offload=modes, activation_offload=np.arange(len(pool)) % 2)
    memories = [predict_memory(rows.plan(row, question=question)) for row in range(len(rows))]
    held = np.asarray([memory.host_bytes_per_node for memory in memories])
    drives = np.asarray([memory.nvme_bytes_per_node for memory in memories])
    node = replace(question.cluster.node, host_memory_bytes=int(np.median(held)), nvme_bytes=int(np.median(drives)))
    question = replace(question, cluster=replace(question.cluster, node=node))
    memory = MemoryEstimate(probes=Probes(question=question))
    fits = fits_host(memory, rows, num_microbatches=pool.num_microbatches)
    expected = (held <= node.host_memory_bytes) & ((drives <= node.nvme_bytes) | (node.nvme_bytes == 0))
    is_clear = (abs(held / node.host_memory_bytes - 1) > ALIKE) & (abs(drives - node.nvme_bytes) >= ALIKE * drives)
    assert np.array_equal(fits[is_clear], expected[is_clear])
    assert 0.2 < np.mean(fits[is_clear]) < 0.8


@pytest.mark.parametrize("model", ["llama-3.1-8b", "qwen3-30b-a3b"])
def test_the_estimate_knows_what_waits_where_backward_is_split(make_question, decorated, model):
    """Gradients of weights that wait fill later stages more than earlier ones, which have as many blocks or more."""
    question = make_question(model=model, cluster="16xh100-sxm", engine="native", compile=False)
    pool = decorated(
        question,
        schedule=("zb-h1",),
        pp=IntRange(low=2, high=8),
        recompute=("none", "selective", "full"),
        activation_offload=False,
    )
    for row in sampled(pool, 60):
        plan = pool.rows.plan(int(row), question=question)
        assert pool.needed_bytes[row] == pytest.approx(predict_memory(plan).needed_bytes, rel=ALIKE), plan.layout

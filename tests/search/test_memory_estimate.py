"""The memory of every row is that of the prediction of the same plan, to the byte."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.catalog import read_cluster
from shardwise.engines.table import ENGINES as ENGINE_TABLE
from shardwise.errors import ShardwiseError
from shardwise.families import read_model
from shardwise.layout import Layout
from shardwise.plan import Plan
from shardwise.predict.memory import predict_fullest_memory, predict_memory
from shardwise.recipe import Recipe
from shardwise.search.bounds import IntRange, SearchBounds
from shardwise.search.candidates import MODULES, SCHEDULES
from shardwise.search.memory_estimate import MemoryEstimate
from shardwise.search.pool import highest_choice
from shardwise.search.probes import Probes
from shardwise.search.space import SELECTIVE, Space
from shardwise.search.validity import valid_candidates
from shardwise.step import buffers

ROWS = 16
LAYERS = (0, 0, 1, 2, 3, 7)
"""Blocks of a stage to recompute; 0 for all of them."""
MODELS = ("llama-3.1-8b", "qwen3-8b", "mixtral-8x7b", "deepseek-v2-lite", "gemma-2-9b", "gpt-oss-20b", "gpt2")
CLUSTERS = ("1xh100-sxm", "8xa100-sxm-80", "16xh100-sxm", "8xdgx-h100", "3xdgx-h100")
ENGINES = ("native", "torchtitan", "megatron", "deepspeed", "fsdp2", "fsdp1", "accelerate", "hai-llm", "nanotron")


def sampled(size, count, seed=7):
    return np.random.default_rng(seed).choice(size, size=min(count, size), replace=False)


def varied(rows, seed, engine):
    """The rows, each with a way to recompute and to offload; where the engine can, with some modules."""
    random = np.random.default_rng(seed)
    ways = [[mode for mode in range(4) if choices >> mode & 1] for choices in rows.offload_choices.tolist()]
    recompute, every = random.integers(0, 3, len(rows)), 1 << len(MODULES)
    has_modules = (recompute == SELECTIVE) & ENGINE_TABLE[engine].recomputes_modules
    return replace(
        rows,
        recompute=recompute,
        recompute_layers=random.choice(LAYERS, len(rows)),
        recompute_modules=np.where(has_modules, random.integers(0, every, len(rows)), 0),
        offload=np.asarray([random.choice(modes) for modes in ways], dtype=np.int64),
        activation_offload=random.integers(0, 2, len(rows)),
    )


def assert_equal_to_predictions(question, rows):
    memory = MemoryEstimate(probes=Probes(question=question))
    needed = memory.device_bytes(rows)
    (in_memory, _), (on_drives, _) = memory.host_needs(rows)
    for row in range(len(rows)):
        plan = rows.plan(row, question=question)
        predicted = predict_memory(plan)
        found = (needed[row], in_memory[row], on_drives[row])
        expected = (predicted.needed_bytes, predicted.host_bytes_per_node, predicted.nvme_bytes_per_node)
        assert found == expected, (plan.layout, plan.recipe, predicted.worst.stage, predicted.worst.peak_moment)


questions = st.builds(
    Plan,
    model=st.sampled_from(MODELS).map(read_model),
    cluster=st.sampled_from(CLUSTERS).map(read_cluster),
    recipe=st.builds(
        Recipe,
        seq_len=st.sampled_from((1024, 4096)),
        global_batch_size=st.sampled_from((1, 16, 96, 384)),
        precision=st.sampled_from(("bf16-mixed", "fp8-mixed", "bf16", "fp16-mixed", "fp32")),
        optimizer=st.sampled_from(("adamw", "adamw", "adamw-8bit", "sgd-momentum", "muon", "adafactor")),
        adapter=st.sampled_from(("none", "none", "lora", "qlora")),
        lora_targets=st.sampled_from(("attention", "all-linear")),
        lora_dropout_fraction=st.sampled_from((0.0, 0.1)),
        attention=st.sampled_from(("flash", "flash", "eager")),
        compile=st.booleans(),
        loss_chunks=st.sampled_from((1, 1, 4)),
        reduce_dtype=st.sampled_from((None, None, "bf16")),
    ),
    layout=st.just(Layout()),
    engine=st.sampled_from(ENGINES),
)


@settings(max_examples=40, derandomize=True)
@given(question=questions, schedule=st.sampled_from((None, *SCHEDULES)), seed=st.integers(0, 999))
def test_a_search_needs_what_the_prediction_says_of_any_engine_recipe_and_schedule(question, schedule, seed):
    bounds = SearchBounds(schedule=None if schedule is None else (schedule,))
    try:
        rows = valid_candidates(Space(question=question, bounds=bounds)).rows
    except ShardwiseError:
        return
    if len(rows):
        some = varied(rows.take(sampled(len(rows), ROWS, seed)), seed, question.engine)
        assert_equal_to_predictions(question, some)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_search_needs_what_the_prediction_says_of_every_engine(make_question, decorated, engine):
    question = make_question(engine=engine, cluster="16xh100-sxm", compile=engine != "hai-llm")
    pool = decorated(question)
    assert_equal_to_predictions(question, varied(pool.rows.take(sampled(len(pool), 40)), 1, engine))


@pytest.mark.parametrize("model", ["deepseek-v2-lite", "qwen3-30b-a3b", "llama-3.1-8b"])
def test_a_search_needs_what_the_prediction_says_of_modules_that_are_recomputed(make_question, decorated, model):
    """Rows of many sets of modules side by side, one device of 8 bits and one of 16."""
    for precision in ("fp8-mixed", "bf16-mixed"):
        question = make_question(model=model, cluster="16xh100-sxm", engine="megatron", precision=precision)
        pool = decorated(question, recompute=("selective",))
        some = pool.rows.take(sampled(len(pool), 40))
        bits = np.random.default_rng(3).integers(0, 1 << len(MODULES), len(some))
        assert_equal_to_predictions(question, replace(some, recompute_modules=bits))


def test_a_tensor_that_grows_in_the_inventory_grows_in_the_search(make_question, decorated, monkeypatch):
    question = make_question()
    before = decorated(question).needed_bytes
    monkeypatch.setattr(buffers, "LIBRARY_WORKSPACE_BYTES", buffers.LIBRARY_WORKSPACE_BYTES + 1)
    assert np.array_equal(decorated(question).needed_bytes, before + 1)


@pytest.mark.parametrize("engine", ["torchtitan", "native"])
def test_stages_of_experts_behind_longer_ones_of_dense_blocks_are_weighed(make_question, decorated, engine):
    """61 blocks on 32 stages: one dense block, then two, then two with experts a stage, which hold most."""
    question = make_question(
        model="deepseek-v3-671b", cluster="256xhgx-h800", engine=engine, seq_len=4096, global_batch_size=15360
    )
    one = IntRange(low=1, high=1)
    pipeline = {"pp": IntRange(low=32, high=32), "cp": one, "dp_replicate": one, "micro_batch_size": one}
    pool = decorated(question, **pipeline, offload=("none",), activation_offload=False)
    assert_equal_to_predictions(question, pool.rows.take(sampled(len(pool), 20)))


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "interleaved", "zb-h1", "zbv", "dualpipev"])
def test_the_fullest_stages_need_as_much_as_all_stages(make_question, decorated, schedule):
    """Where gradients of weights wait, later stages may need more than earlier ones that hold equal blocks."""
    question = make_question(model="qwen3-30b-a3b", cluster="16xh100-sxm", compile=False)
    pool = decorated(question, schedule=(schedule,), pp=IntRange(low=2, high=16))
    for row in sampled(len(pool), 30).tolist():
        plan = pool.rows.plan(row, question=question)
        assert predict_fullest_memory(plan).needed_bytes == predict_memory(plan).needed_bytes, plan.layout


@pytest.mark.parametrize("precision", ["bf16", "bf16-mixed"])
@pytest.mark.parametrize("global_batch_size", [1, 4])
def test_what_one_rank_moves_to_the_host_is_left_to_units_and_not_to_ddp(make_question, precision, global_batch_size):
    """Plain weights on one rank are left to DDP, but gathered unit by unit when they come from the host."""
    asked = {"precision": precision, "global_batch_size": global_batch_size}
    question = make_question(model="llama-3.2-1b", cluster="1xh100-sxm", seq_len=1024, **asked)
    valid = valid_candidates(Space(question=question, bounds=SearchBounds(micro_batch_size=IntRange(low=1, high=1))))
    rows = replace(valid.rows, offload=highest_choice(valid.rows))
    assert set(rows.offload.tolist()) == {0, 1, 2}
    assert_equal_to_predictions(question, rows)


def test_a_row_whose_first_stage_is_too_big_is_given_the_need_of_that_stage(make_question, decorated):
    question = make_question()
    pool = decorated(question, pp=IntRange(low=2, high=4))
    memory = MemoryEstimate(probes=Probes(question=question))
    limit = float(np.median(pool.needed_bytes))
    shown = memory.device_bytes(pool.rows, enough_bytes=limit)
    assert np.array_equal(shown <= limit, pool.needed_bytes <= limit)
    assert np.array_equal(shown[shown <= limit], pool.needed_bytes[shown <= limit])


def test_states_are_a_part_of_what_is_needed(make_question, decorated):
    question = make_question(model="qwen3-30b-a3b", engine="megatron")
    pool = decorated(question)
    memory = MemoryEstimate(probes=Probes(question=question))
    assert (memory.states_bytes(pool.rows) < pool.needed_bytes).all()


def test_offloaded_states_leave_the_device(make_question, decorated):
    question = make_question()
    kept = decorated(question, recompute=("full",), offload=("none",))
    moved = decorated(question, recompute=("full",), offload=("optimizer",))
    assert moved.needed_bytes.min() < kept.needed_bytes.min()


def test_no_rows_need_no_memory(make_question, decorated):
    question = make_question()
    nothing = decorated(question).rows.take(np.zeros(0, dtype=np.int64))
    assert len(MemoryEstimate(probes=Probes(question=question)).device_bytes(nothing)) == 0


@pytest.mark.parametrize(
    ("engine", "cluster"), [("native", "16xh100-sxm"), ("deepspeed", "16xh100-sxm"), ("megatron", "16xl40s")]
)
def test_rows_whose_hosts_do_not_hold_what_moves_there_are_found(make_question, decorated, engine, cluster):
    question = make_question(engine=engine, cluster=cluster, global_batch_size=256)
    pool = decorated(question, recompute=("none", "full"))
    pool = pool.take(sampled(len(pool), 200))
    rows = replace(pool.rows, offload=highest_choice(pool.rows), activation_offload=np.arange(len(pool)) % 2)
    memories = [predict_memory(rows.plan(row, question=question)) for row in range(len(rows))]
    held = np.asarray([memory.host_bytes_per_node for memory in memories])
    drives = np.asarray([memory.nvme_bytes_per_node for memory in memories])
    node = replace(question.cluster.node, host_memory_bytes=int(np.median(held)), nvme_bytes=int(np.median(drives)))
    question = replace(question, cluster=replace(question.cluster, node=node))
    fits = MemoryEstimate(probes=Probes(question=question)).fits_host(rows)
    holds_drives = (drives <= node.nvme_bytes) | (node.nvme_bytes == 0)
    assert np.array_equal(fits, (held <= node.host_memory_bytes) & holds_drives)
    assert 0.2 < np.mean(fits) < 0.8

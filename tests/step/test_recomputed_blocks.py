"""What a stage holds when only some of its blocks are recomputed, and which ones each engine takes."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.plan_file import read_plan
from shardwise.predict.memory import predict_memory
from shardwise.step.layer_placement import pipeline_stages
from shardwise.step.recomputed_blocks import held_runs, recomputed_positions
from shardwise.step.stage_context import StageContext

GIB = 2**30
ORDERS = ("first of stage", "first of chunk", "every")
TINY = {
    "model_type": "llama",
    "hidden_size": 320,
    "intermediate_size": 896,
    "num_attention_heads": 10,
    "num_key_value_heads": 10,
    "num_hidden_layers": 7,
    "vocab_size": 512,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}


def planned(layers, *, model="llama-3.1-8b", cluster="8xh100-sxm", engine="native", layout=None, **recipe):
    chosen = {"recompute": "full", "recompute_layers": layers} if layers else {}
    return read_plan(
        {
            "model": model,
            "cluster": cluster,
            "recipe": {"seq_len": 8192, "compile": False, **chosen, **recipe},
            "layout": layout or {"dp_shard": 8},
            "engine": engine,
        }
    )


def peak_bytes(plan):
    return predict_memory(plan).worst.peak_allocated_bytes


def context_of(plan, stage=0):
    return StageContext(plan=plan, stage=pipeline_stages(model=plan.model, layout=plan.layout)[stage])


@pytest.mark.parametrize(
    ("layers", "traced_gib"),
    [(0, 55.563), (1, 54.344), (8, 45.805), (16, 36.047), (24, 26.288), (30, 18.970), (31, 17.750), (32, 17.750)],
)
def test_the_peak_is_the_traced_one_whatever_the_number_of_blocks(layers, traced_gib):
    """8B over eight ranks at 8,192 tokens: `shardwise trace` of the trainer's own code, torch 2.13."""
    assert peak_bytes(planned(layers)) / GIB == pytest.approx(traced_gib, rel=5e-4)


@pytest.mark.parametrize("engine", ["native", "fsdp2", "accelerate", "deepspeed", "megatron", "torchtitan"])
def test_one_more_recomputed_block_never_needs_more(engine):
    layout = {"dp_shard": 8, "zero_stage": 1} if engine == "megatron" else None
    peaks = [peak_bytes(planned(layers, engine=engine, layout=layout)) for layers in range(33)]
    assert all(more <= fewer for fewer, more in pairwise(peaks))
    assert peaks[-1] < 0.7 * peaks[0]


def test_what_recomputing_brings_back_does_not_meet_the_kept_blocks_behind_it():
    """A block brought back takes the place of one that is through: seven kept blocks less one, less its input."""
    one_node = {"model": TINY, "cluster": "1xh100-sxm", "layout": {"dp_shard": 1}, "precision": "fp32"}
    context = context_of(planned(3, **one_node))
    whole = context.blocks[-1].whole
    peaks = [peak_bytes(planned(layers, **one_node)) for layers in range(6)]
    freed = [fewer - more for fewer, more in pairwise(peaks)]
    assert freed == pytest.approx([whole - context.kept_bytes(0)] * 5, rel=1e-3)


@pytest.mark.parametrize(
    ("engine", "runs"),
    [
        ("native", [(6, 6), (10, 0)]),
        ("megatron", [(11, 6), (5, 0)]),  # three of the eight blocks of both chunks
        ("torchtitan", [(16, 6)]),  # the last one among them
    ],
)
def test_each_engine_recomputes_the_blocks_that_it_says(engine, runs):
    layout = {"dp_shard": 4, "pp": 2, "vpp": 2, "schedule": "interleaved", "zero_stage": 1}
    plan = planned(6, engine=engine, layout=layout, global_batch_size=64)
    assert [(run.count, run.num_recomputed) for run in context_of(plan).held_runs] == runs


def test_a_model_of_two_kinds_of_blocks_recomputes_those_at_its_front():
    """DeepSeek-V2-Lite: one dense block, then 26 with experts."""
    context = context_of(planned(5, model="deepseek-v2-lite"))
    assert [(run.count, run.num_recomputed) for run in context.held_runs] == [(1, 1), (4, 4), (22, 0)]
    assert [context.num_recomputed(layer) for layer, _ in context.layer_runs] == [1, 4]


chunks = st.lists(st.integers(1, 9), min_size=1, max_size=4)


@given(chunks, st.integers(0, 40), st.sampled_from(ORDERS))
def test_as_many_blocks_are_recomputed_as_asked_for(chunk_layers, asked, order):
    chosen = recomputed_positions(chunk_layers=chunk_layers, num_recomputed=asked, order=order)
    rounded_up = len(chunk_layers) - 1 if order == "first of chunk" else 0
    assert len(chosen) == sum(chunk_layers)
    assert 0 <= sum(chosen) - min(asked, len(chosen)) <= rounded_up


@given(st.lists(st.booleans(), min_size=1, max_size=20), st.integers(1, 20))
def test_runs_hold_all_blocks_and_end_in_a_recomputed_one_or_have_none(recomputed, first):
    cut = min(first, len(recomputed))
    layer_runs = [(name, count) for name, count in (("a", cut), ("b", len(recomputed) - cut)) if count]
    runs = list(held_runs(tuple(layer_runs), recomputed))
    start = 0
    for run in runs:
        inside = recomputed[start : start + run.count]
        assert sum(inside) == run.num_recomputed
        assert inside[-1] or not any(inside)
        start += run.count
    assert start == len(recomputed)

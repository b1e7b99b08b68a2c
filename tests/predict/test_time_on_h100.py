"""Predicted beside measured step times of our own runs of Llama-3.1-8B on four H100s (torch 2.11), 2026-11-27.

Whole-model rows of ``benchmarks/results/2026-11-27-h100-memory.jsonl``, a plain FSDP2 loop that asks for
FlashAttention-2 (``benchmarks/gpu/decoder.py``); no constant was fitted on those of 8B. Not held here:
transformers' blocks.
"""

import csv
from dataclasses import replace
from pathlib import Path

import pytest
from benchmarks.published.parts import decoder
from benchmarks.published.timed_parts import megatron_gpt

from shardwise.catalog import read_cluster
from shardwise.families import read_model
from shardwise.layout import Layout
from shardwise.plan import Plan
from shardwise.predict.stage_time import StageClock
from shardwise.predict.time import predict_time
from shardwise.recipe import Recipe
from shardwise.step.layer_placement import pipeline_stages
from shardwise.step.operation_context import operation_context
from shardwise.step.stage_context import StageContext

RUNS = [
    ({"seq_len": 8192, "micro_batch_size": 2, "recompute": "full"}, 2.318),
    ({"seq_len": 8192, "recompute": "full"}, 1.239),
    ({"seq_len": 8192, "recompute": "selective"}, 1.122),
    ({"seq_len": 8192, "recompute": "selective", "compile": True}, 1.062),
    ({"seq_len": 2048, "recompute": "none", "compile": True}, 0.367),
    ({"seq_len": 4096, "recompute": "selective"}, 0.707),
]


@pytest.mark.parametrize(("settings", "measured_s"), RUNS)
def test_llama_8b_on_four_h100_takes_its_measured_time(settings, measured_s):
    """Within 4 %, those that wait for their host (2,048 and 4,096 tokens) within 6.

    With the times of collectives that were measured on the same four GPUs all but one are a few per cent too slow: what
    a hidden collective costs its computation is counted as in pairs of equal length.
    """
    recipe = Recipe(**({"micro_batch_size": 1, "compile": False, "attention_kernel": "fa2"} | settings))
    cluster = read_cluster({"gpu": "h100-sxm", "gpus_per_node": 4, "num_nodes": 1})
    plan = Plan(
        model=read_model("llama-3.1-8b"), cluster=cluster, recipe=recipe, layout=Layout(dp_shard=4), engine="fsdp2"
    )
    assert predict_time(plan)[0].step_s == pytest.approx(measured_s, rel=0.042 if recipe.seq_len == 8192 else 0.062)


def test_tensor_parallel_blocks_on_dtensors_wait_for_their_host():
    """Of 8B at 8,192 tokens and two sequences, 2 x 2 H100, full recomputation, eager: 1.442 s, bound by both sides."""
    recipe = Recipe(seq_len=8192, micro_batch_size=2, recompute="full", compile=False, attention_kernel="fa2")
    cluster = read_cluster({"gpu": "h100-sxm", "gpus_per_node": 4, "num_nodes": 1})
    layout = Layout(dp_shard=2, tp=2, sequence_parallel=True)
    plan = Plan(model=read_model("llama-3.1-8b"), cluster=cluster, recipe=recipe, layout=layout, engine="fsdp2")
    assert predict_time(plan)[0].step_s == pytest.approx(1.442, rel=0.06)


def block_readings():
    path = Path(__file__).parents[2] / "benchmarks/results/2026-11-28-h100-blocks.csv"
    with path.open(encoding="utf-8") as file:
        return [row for row in csv.DictReader(file) if row["attention"] == "flash"]


@pytest.mark.parametrize("row", block_readings(), ids=lambda row: f"{row['hidden_size']}-{row['seq_len']}")
def test_gpt_blocks_take_the_sum_of_their_kernels(row):
    """Blocks of 1,024 to 8,192 wide on one H100, with torch's choice, which is cuDNN's attention.

    Forward in a burst is met within 5 % (FlashAttention-2 would be up to 9 % too slow); forward and backward, held for
    seconds, are 1 to 9 % too fast: small kernels lose more to power than long ones, and the split of joined queries,
    keys and values is not counted.
    """
    hidden, heads, sequences, seq_len = (int(row[name]) for name in ("hidden_size", "heads", "sequences", "seq_len"))
    shape = megatron_gpt(hidden_size=hidden, num_layers=2, num_heads=heads, seq_len=seq_len)
    recipe = Recipe(
        seq_len=seq_len, micro_batch_size=sequences, global_batch_size=sequences, precision="bf16", compile=False
    )
    plan = Plan(
        model=replace(decoder(shape), attention_dropout_fraction=0.0),
        cluster=read_cluster({"gpu": "h100-sxm", "gpus_per_node": 1, "num_nodes": 1}),
        recipe=recipe,
        layout=Layout(zero_stage=0),
        engine="fsdp2",
    )
    (stage,) = pipeline_stages(model=plan.model, layout=plan.layout)
    context = StageContext(plan=plan, stage=stage)
    book = StageClock(plan).work_book(context)
    times = book.of_layer(context.layer_runs[0][0], operation_context(context))[0]
    assert times.forward_s * 1e6 == pytest.approx(float(row["forward_us"]), rel=0.055)
    assert (times.forward_s + times.backward_s) * 1e6 == pytest.approx(float(row["held_us"]), rel=0.095)

"""nanotron beside the sweep that its authors publish."""

import csv
from pathlib import Path
from statistics import median

import pytest

from shardwise.engines.table import state_bytes
from shardwise.plan_file import read_plan
from shardwise.predict import predict

ROWS = list(csv.DictReader((Path(__file__).parent / "data" / "nanotron_sweep.csv").open(encoding="utf-8")))
"""The best layouts of huggingface/nanotron@2411b02 ``docs/benchmark_summary.svg`` (2025-02-13, nanotron 0.5):
4,096 x 256 tokens a step on nodes of eight H100, models of ``scripts/scaling_benchmarks.py`` with 131,072 rows in their
tables. Layers are placed as ``models/base.py`` places them by cost. Nothing is fitted on them."""
SHAPES = {
    "1.34B": (16, 2048, 32, 8192, True),
    "3.57B": (28, 3072, 32, 8192, True),
    "8.86B": (32, 4096, 32, 14336, False),
    "80B": (80, 8192, 64, 28672, False),
}
SEQ_LEN, BATCH, VOCAB, PEAK_FLOP_PER_S = 4096, 256, 131_072, 989.5e12


def predicted(row):
    layers, hidden, heads, width, is_tied = SHAPES[row["model"]]
    dp, tp, pp, zero = (int(row[name]) for name in ("dp", "tp", "pp", "zero_stage"))
    layout = {"tp": tp, "pp": pp, "zero_stage": zero, "sequence_parallel": tp > 1}
    layout |= {"dp_shard": dp} if zero else {"dp_replicate": dp}
    stages = [int(count) for count in row["stage_layers"].split()]
    if len(set(stages)) > 1:
        layout["stage_layers"] = stages
    model = {
        "model_type": "llama", "num_hidden_layers": layers, "hidden_size": hidden, "num_attention_heads": heads,
        "intermediate_size": width, "tie_word_embeddings": is_tied, "vocab_size": VOCAB,
        "max_position_embeddings": SEQ_LEN,
    }  # fmt: skip
    recipe = {"seq_len": SEQ_LEN, "global_batch_size": BATCH, "micro_batch_size": int(row["micro_batch_size"])}
    document = {"schema": "shardwise.plan/1", "model": model, "cluster": f"{row['num_nodes']}xp5.48xlarge"}
    document |= {"engine": "nanotron", "layout": layout, "recipe": recipe | {"recompute": "none", "compile": False}}
    return predict(read_plan(document))


def measured_s(row):
    """Seconds of a step by ``get_flops`` of ``models/llama.py``, which counts attention to all positions."""
    layers, hidden, _, width, _ = SHAPES[row["model"]]
    block = 8 * hidden**2 + 4 * SEQ_LEN * hidden + 6 * hidden * width
    flop = 3 * BATCH * SEQ_LEN * (layers * block + 2 * hidden * VOCAB)
    return flop / (float(row["mfu_percent"]) / 100 * PEAK_FLOP_PER_S * 8 * int(row["num_nodes"]))


def test_the_table_is_the_whole_sweep():
    assert len(ROWS) == 26
    assert measured_s(ROWS[-1]) == pytest.approx(16.513, abs=0.001)


def test_times_of_the_published_sweep_are_met():
    """Median of the sizes of 26 errors 12.1 %, 20 inside the band; as megatron 14.6 %. Four of the others are the runs
    on 64 nodes, up to 2.7 times slower than predicted, whose network nobody describes."""
    times = [predicted(row).time for row in ROWS]
    found = [abs(time.step_s / measured_s(row) - 1) for time, row in zip(times, ROWS, strict=True)]
    inside = [time.step_low_s <= measured_s(row) <= time.step_high_s for time, row in zip(times, ROWS, strict=True)]
    assert median(found) < 0.13
    assert sum(inside) >= 20


def test_memory_of_the_published_sweep_is_met():
    """Whether reserved or allocated memory is meant is not said."""
    ratios = [predicted(row).memory.needed_bytes / 2**30 / float(row["memory_gb"]) for row in ROWS]
    assert 0.93 < median(ratios) < 1.07


def test_gradients_are_whole_in_two_dtypes_beside_divided_masters():
    """``FP32GradientAccumulator``: 2-byte weights and gradients, an fp32 buffer, fp32 weights and two moments."""
    states = state_bytes(engine="nanotron", precision="bf16-mixed")
    assert (states.weight_bytes, states.gradient_bytes) == (2, 6)
    assert states.master_bytes + 2 * states.moment_bytes == 12

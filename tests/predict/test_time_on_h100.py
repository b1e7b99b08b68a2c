"""Predicted beside measured step times of our own runs of Llama-3.1-8B on four H100s (torch 2.11), 2026-11-27.

Whole-model rows of ``benchmarks/results/2026-11-27-h100-memory.jsonl``; no constant was fitted on them. Not held here:
DTensor's tensor parallelism (its host is not modelled; 13 % too fast), selective recomputation at 4,096 tokens (15 %
too fast, unexplained), and transformers' blocks.
"""

import pytest

from shardwise.catalog import read_cluster
from shardwise.families import read_model
from shardwise.layout import Layout
from shardwise.plan import Plan
from shardwise.predict.time import predict_time
from shardwise.recipe import Recipe

RUNS = [
    ({"seq_len": 8192, "micro_batch_size": 2, "recompute": "full"}, 2.318),
    ({"seq_len": 8192, "recompute": "full"}, 1.239),
    ({"seq_len": 8192, "recompute": "selective"}, 1.122),
    ({"seq_len": 8192, "recompute": "selective", "compile": True}, 1.062),
    ({"seq_len": 2048, "recompute": "none", "compile": True}, 0.367),
]


@pytest.mark.parametrize(("settings", "measured_s"), RUNS)
def test_llama_8b_on_four_h100_takes_its_measured_time(settings, measured_s):
    """Within 4 %, but for 2,048 tokens, where gathers are exposed: 13 %.

    With the times of collectives that were measured on the same four GPUs all but one are a few per cent too slow: what
    a hidden collective costs its computation is counted as in pairs of equal length.
    """
    recipe = Recipe(**({"micro_batch_size": 1, "compile": False} | settings))
    cluster = read_cluster({"gpu": "h100-sxm", "gpus_per_node": 4, "num_nodes": 1})
    plan = Plan(model=read_model("llama-3.1-8b"), cluster=cluster, recipe=recipe, layout=Layout(dp_shard=4))
    step_s = predict_time(plan)[0].step_s
    assert step_s == pytest.approx(measured_s, rel=0.042 if recipe.seq_len == 8192 else 0.14)

"""Models whose launches decide the step: Megatron-LM's own nightly runs, beside their predictions.

12 layers of 512 with 8 heads and 50,304 words, micro-batches of 4 x 1,024 tokens, 32 sequences a step, 8 GPUs;
NVIDIA/Megatron-LM@d98e8a6 ``tests/functional_tests/test_cases/gpt``, 2026-08: medians of 49 to 99 steps. Without what
Megatron's modules cost the host every one of them was predicted to take half its time.
"""

import pytest

from shardwise.plan_file import read_plan
from shardwise.predict.time import predict_time

FITTED = [
    ({}, {}, 50.0),
    ({}, {"recompute": "full"}, 76.2),
    ({"tp": 4}, {}, 194.7),
]
OTHERS = [
    ({"pp": 2}, {}, 82.9),
    ({"pp": 4}, {}, 85.7),
    ({"tp": 2, "pp": 2}, {}, 118.4),
    ({"tp": 4, "pp": 2}, {}, 195.9),
    ({"pp": 4, "vpp": 3, "schedule": "interleaved"}, {}, 80.8),
    ({"tp": 2, "cp": 2}, {"attention_kernel": "fa2"}, 252.5),
    ({"tp": 2, "pp": 2, "cp": 2}, {"attention_kernel": "fa2"}, 283.9),
]
ON_GRACE = [({}, {}, 66.9), ({"tp": 4}, {}, 280.0), ({"tp": 2, "pp": 2}, {}, 173.8), ({"pp": 4}, {}, 117.7)]


def predicted(layout, recipe, cluster):
    ranks = 8
    for axis in ("tp", "pp", "cp"):
        ranks //= layout.get(axis, 1)
    model = {
        "model_type": "gpt2",
        "n_embd": 512,
        "n_layer": 12,
        "n_head": 8,
        "n_positions": 1024,
        "vocab_size": 50304,
        "n_inner": 2048,
    }
    document = {
        "model": model,
        "cluster": cluster,
        "recipe": {
            "seq_len": 1024,
            "micro_batch_size": 4,
            "global_batch_size": 32,
            "precision": "bf16-mixed",
            **recipe,
        },
        "layout": {"dp_shard": ranks, "zero_stage": 1, "sequence_parallel": False, **layout},
        "engine": "megatron",
    }
    return predict_time(read_plan(document))[0]


@pytest.mark.parametrize(("layout", "recipe", "measured_ms"), FITTED)
def test_the_runs_that_megatrons_host_time_was_fitted_on(layout, recipe, measured_ms):
    time = predicted(layout, recipe, {"gpu": "h100-sxm", "gpus_per_node": 8, "num_nodes": 1})
    assert 1000 * time.step_s == pytest.approx(measured_ms, rel=0.12)


@pytest.mark.parametrize(("layout", "recipe", "measured_ms"), OTHERS)
def test_runs_that_nothing_was_fitted_on(layout, recipe, measured_ms):
    time = predicted(layout, recipe, {"gpu": "h100-sxm", "gpus_per_node": 8, "num_nodes": 1})
    assert 1000 * time.step_s == pytest.approx(measured_ms, rel=0.25)
    assert 1000 * time.step_low_s < measured_ms < 1000 * time.step_high_s


@pytest.mark.parametrize(("layout", "recipe", "measured_ms"), ON_GRACE)
def test_grace_hosts_launch_more_slowly(layout, recipe, measured_ms):
    """Their pace alone is fitted, on all pairs of the same run on both parts."""
    time = predicted(layout, recipe, {"gpu": "gb200", "gpus_per_node": 4, "num_nodes": 2})
    assert 1000 * time.step_s == pytest.approx(measured_ms, rel=0.2)

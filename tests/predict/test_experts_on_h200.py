"""Runs of experts on one H200 (torch 2.11, compiled; torchtitan's of 2026-11-29, ours of 2026-11-30 and 2026-12-01).

torchtitan's kernels around experts were timed apart (``benchmarks/results/2026-11-30-h200-experts.md``). Those of ours
are from one profiled step of the run of eight sequences without recomputation, and how many launches routing adds to a
compiled block was set after the run of two sequences had been seen. Neither is a test of these constants; the two runs
that recompute are (``2026-11-30-h200-moe.md``).
"""

import pytest

from shardwise.plan_file import read_plan
from shardwise.predict import predict
from shardwise.units import GIB

MODEL = {
    "model_type": "qwen3_moe",
    "hidden_size": 2048,
    "num_hidden_layers": 16,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "num_experts": 32,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 768,
    "intermediate_size": 6144,
    "vocab_size": 151936,
    "norm_topk_prob": True,
    "tie_word_embeddings": False,
}


DEEPSEEK = {
    **{"model_type": "deepseek_v3", "hidden_size": 2048, "intermediate_size": 6144, "moe_intermediate_size": 768},
    **{"num_hidden_layers": 10, "num_attention_heads": 16, "num_key_value_heads": 16, "vocab_size": 50304},
    **{"n_routed_experts": 32, "n_shared_experts": 1, "num_experts_per_tok": 4, "n_group": 4, "topk_group": 2},
    **{"first_k_dense_replace": 1, "norm_topk_prob": True, "routed_scaling_factor": 2.5, "tie_word_embeddings": False},
    **{"q_lora_rank": 768, "kv_lora_rank": 256, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "v_head_dim": 64},
}
"""Built by transformers, 1.71B parameters."""


def predicted(engine, micro_batch_size, recompute="none", model=MODEL):
    recipe = {
        "seq_len": 4096,
        "micro_batch_size": micro_batch_size,
        "global_batch_size": micro_batch_size,
        "precision": "bf16-mixed",
        "recompute": recompute,
        "compile": True,
    }
    cluster = {"gpu": "h200-sxm", "gpus_per_node": 1, "num_nodes": 1}
    return predict(read_plan({"model": model, "cluster": cluster, "recipe": recipe, "layout": {}, "engine": engine}))


@pytest.mark.usefixtures("in_units")
@pytest.mark.parametrize(
    ("engine", "micro_batch_size", "step_s", "allocated_gib"),
    [
        ("native", 2, 0.1402, 49.52),
        ("native", 8, 0.4089, 69.50),
        ("torchtitan", 2, 0.2227, 57.27),
        ("torchtitan", 8, 0.6771, 104.97),
    ],
)
def test_steps_of_experts_are_met_within_8_percent(engine, micro_batch_size, step_s, allocated_gib):
    found = predicted(engine, micro_batch_size)
    assert found.time.step_s == pytest.approx(step_s, rel=0.08)
    assert found.memory.worst.peak_allocated_bytes / GIB == pytest.approx(allocated_gib, rel=0.035)


@pytest.mark.usefixtures("in_units")
@pytest.mark.parametrize(
    ("recompute", "step_s", "allocated_gib"), [("selective", 0.4554, 51.53), ("full", 0.4712, 50.21)]
)
def test_recomputed_steps_of_our_experts_are_met_within_3_percent(recompute, step_s, allocated_gib):
    found = predicted("native", 8, recompute)
    assert found.time.step_s == pytest.approx(step_s, rel=0.03)
    assert found.memory.worst.peak_allocated_bytes / GIB == pytest.approx(allocated_gib, rel=0.03)


@pytest.mark.parametrize(
    ("micro_batch_size", "recompute", "step_s", "allocated_gib"),
    [
        (2, "none", 0.11776, 43.47),
        (8, "none", 0.38492, 63.54),
        (8, "selective", 0.42689, 45.56),
        (8, "full", 0.45396, 44.24),
    ],
)
def test_steps_of_halved_weights_are_met_within_5_percent(micro_batch_size, recompute, step_s, allocated_gib):
    """``2026-12-01-h200-halves.jsonl``, predicted before it ran."""
    found = predicted("native", micro_batch_size, recompute)
    assert found.time.step_s == pytest.approx(step_s, rel=0.05)
    assert found.memory.worst.peak_allocated_bytes / GIB == pytest.approx(allocated_gib, rel=0.01)


def test_halved_experts_that_transformers_builds_keep_their_output():
    found = predicted("native", 2, model=DEEPSEEK)
    assert found.memory.worst.peak_allocated_bytes / GIB == pytest.approx(25.10, rel=0.01)
    assert found.time.step_low_s < 0.07427 < found.time.step_high_s


@pytest.mark.usefixtures("in_units")
def test_experts_that_transformers_builds_keep_their_output():
    """Its router weights multiply what the experts said, which is kept (``2026-11-30-h200-units-at-once.md``)."""
    found = predicted("native", 2, model=DEEPSEEK)
    assert found.memory.worst.peak_allocated_bytes / GIB == pytest.approx(28.27, rel=0.01)
    assert found.time.step_low_s < 0.0906 < found.time.step_high_s


def test_selective_recomputation_without_an_exchange_fits_where_it_ran():
    """Qwen3-30B-A3B, 8 B200, FSDP alone, 8 sequences of 8,192, 8 pieces of the loss: 142 GiB (mlc-ai/pith-train#79)."""
    recipe = {
        "seq_len": 8192,
        "micro_batch_size": 8,
        "global_batch_size": 64,
        "recompute": "selective",
        "loss_chunks": 8,
    }
    plan = {
        "model": "qwen3-30b-a3b",
        "cluster": {"gpu": "b200-sxm", "gpus_per_node": 8, "num_nodes": 1},
        "recipe": {**recipe, "precision": "bf16-mixed", "compile": True},
        "layout": {"dp_shard": 8},
        "engine": "torchtitan",
    }
    memory = predict(read_plan(plan)).memory
    assert memory.worst.peak_reserved_bytes / GIB == pytest.approx(142, rel=0.05)
    assert memory.fits_device

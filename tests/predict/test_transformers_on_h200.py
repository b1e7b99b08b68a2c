"""Fine-tuning as users of transformers do it on one H200, measured 2026-11-29 (torch 2.11, peft 0.21, Liger 0.8.5)."""

import pytest

from shardwise.plan_file import read_plan
from shardwise.predict import predict
from shardwise.units import GIB

LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "tie_word_embeddings": False,
}
QWEN = {
    "model_type": "qwen2",
    "hidden_size": 1536,
    "intermediate_size": 8960,
    "num_hidden_layers": 28,
    "num_attention_heads": 12,
    "num_key_value_heads": 2,
    "vocab_size": 151936,
    "tie_word_embeddings": True,
}
ADAPTED = {"micro_batch_size": 2, "precision": "bf16", "recompute": "full", "lora_targets": "all-linear"}


def predicted(model, **recipe):
    batch = recipe["micro_batch_size"]
    plan = {
        "model": model,
        "cluster": "1xh200-sxm",
        "engine": "accelerate",
        "recipe": {"seq_len": 4096, "global_batch_size": batch, "compile": False, **recipe},
        "layout": {"zero_stage": 0},
    }
    return predict(read_plan(plan))


@pytest.mark.parametrize(
    ("recipe", "step_s", "within", "allocated_gib"),
    [
        ({"adapter": "lora"}, 1.302, 0.06, 29.36),
        ({"adapter": "lora", "liger_kernels": True}, 1.1321, 0.03, 20.09),
        ({"adapter": "qlora", "liger_kernels": True}, 1.1575, 0.03, 10.55),
    ],
)
def test_adapters_of_peft_cost_what_was_measured(recipe, step_s, within, allocated_gib):
    found = predicted(LLAMA, **ADAPTED, **recipe)
    assert found.time.step_s == pytest.approx(step_s, rel=within)
    assert found.memory.worst.peak_allocated_bytes / GIB == pytest.approx(allocated_gib, rel=0.03)


def test_fp32_weights_under_autocast_with_liger_cost_what_was_measured():
    found = predicted(QWEN, micro_batch_size=4, liger_kernels=True)
    assert found.time.step_s == pytest.approx(0.4174, rel=0.07)
    assert found.memory.worst.peak_allocated_bytes / GIB == pytest.approx(59.78, rel=0.02)

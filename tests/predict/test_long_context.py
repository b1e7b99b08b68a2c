"""One sequence of 1,048,576 tokens over eight H100: Hugging Face's own runs of TRL, on which nothing was fitted."""

import pytest

from shardwise.catalog import read_cluster
from shardwise.families import read_model
from shardwise.layout import Layout
from shardwise.plan import Plan
from shardwise.predict.time import predict_time
from shardwise.recipe import Recipe


@pytest.mark.parametrize(
    ("model", "kernel", "offload", "measured_s"),
    [
        ("qwen3-0.6b", "cudnn", "none", 137),
        ("qwen3-8b", "cudnn", "none", 380),
        ("qwen3-8b", "fa2", "none", 606),
        ("qwen3-30b-a3b", "cudnn", "parameters", 483),
        ("qwen3-32b", "cudnn", "parameters", 1295),
    ],
)
def test_a_million_tokens(model, kernel, offload, measured_s):
    """bf16, checkpoints on the host, FSDP2 with context parallelism 8, transformers 5.16 and accelerate, 2026-08
    (huggingface/trl#6845 and #6846; 606 s: huggingface/transformers#48324). From 30B on states are on hosts."""
    recipe = Recipe(
        seq_len=1_048_576,
        global_batch_size=1,
        recompute="full",
        activation_offload=True,
        offload=offload,
        loss_chunks=4096,
        attention_kernel=kernel,
        compile=False,
    )
    plan = Plan(
        model=read_model(model),
        cluster=read_cluster("8xh100-sxm"),
        recipe=recipe,
        layout=Layout(cp=8, zero_stage=3),
        engine="accelerate",
    )
    assert predict_time(plan)[0].step_s == pytest.approx(measured_s, rel=0.05)

"""Gated delta nets, the linear attention of Qwen3-Next and Qwen3.5: kernels as timed, and a step not fitted on."""

import pytest

from shardwise.catalog import read_cluster
from shardwise.families import read_model
from shardwise.layout import Layout
from shardwise.plan import Plan
from shardwise.predict.compute import operation_time_s
from shardwise.predict.machine_rates import machine_rates
from shardwise.predict.time import predict_time
from shardwise.recipe import Recipe
from shardwise.step.block_operations import SCAN_FLOP_PER_STATE
from shardwise.step.inventory import Operation

TOKENS, STATE = 8192, 128


def kernels_ms(heads, phase):
    plan = Plan(
        model=read_model("qwen3.5-35b-a3b"),
        cluster=read_cluster("1xh200-sxm"),
        recipe=Recipe(seq_len=TOKENS),
        layout=Layout(),
        engine="fsdp2",
    )
    times = 2 if phase == "backward" else 1
    operation = Operation(
        name="delta_rule",
        kind="delta_rule",
        phase=phase,
        count=1,
        flop=times * SCAN_FLOP_PER_STATE * TOKENS * heads * STATE * STATE,
        num_bytes=0,
        dtype="bf16",
        m=TOKENS,
    )
    return 1000 * operation_time_s(operation, gpu=plan.cluster.gpu, rates=machine_rates(plan).kernels)


@pytest.mark.parametrize(("heads", "measured_ms"), [(8, 0.234), (16, 0.334), (32, 0.472), (48, 0.665), (64, 0.814)])
def test_forward_takes_what_was_timed(heads, measured_ms):
    """flash-linear-attention 0.5.1 on H200 (QwenLM/FlashQLA ``benchmark/benchmark_results_H200.txt``, 2026-07)."""
    assert kernels_ms(heads, "forward") == pytest.approx(measured_ms, rel=0.1)
    assert kernels_ms(heads, "recompute") == kernels_ms(heads, "forward")


@pytest.mark.parametrize(("heads", "measured_ms"), [(4, 0.606), (8, 0.722), (16, 0.957), (32, 1.444)])
def test_backward_takes_what_was_timed(heads, measured_ms):
    assert kernels_ms(heads, "backward") == pytest.approx(measured_ms, rel=0.1)


def test_a_step_of_qwen_3_5_on_b300():
    """35B-A3B, 8 B300, 4 x 4,096 tokens a rank, checkpointing, two expert-parallel ranks: 16,400 tokens/s a
    GPU (whitecircle/halo ``human-docs/performance.md``, 2026). Nothing is fitted on it."""
    plan = Plan(
        model=read_model("qwen3.5-35b-a3b"),
        cluster=read_cluster("8xb300-sxm"),
        recipe=Recipe(seq_len=4096, micro_batch_size=4, global_batch_size=32, recompute="full"),
        layout=Layout(dp_shard=8, ep=2),
        engine="fsdp2",
    )
    _, throughput = predict_time(plan)
    assert throughput.tokens_per_s_per_gpu == pytest.approx(16_400, rel=0.1)

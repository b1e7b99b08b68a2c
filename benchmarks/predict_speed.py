"""CPU time of one prediction, part by part: ``python benchmarks/predict_speed.py``.

Limits: 3 ms for Llama-3.1-8B on 8 GPUs, 5 ms for Llama-3.1-70B on 64, 30 ms for Llama-3.1-405B on 16,384, whose
pipeline is simulated. Exits with 1 when a limit is exceeded.
"""

import sys
from collections.abc import Callable
from time import process_time

from shardwise.catalog import read_cluster
from shardwise.families import read_model
from shardwise.layout import Layout
from shardwise.plan import Plan
from shardwise.predict import predict
from shardwise.predict.memory import predict_memory
from shardwise.predict.time import predict_time
from shardwise.recipe import Recipe

REPEATS = 200


def plans() -> tuple[tuple[str, Plan, float], ...]:
    """Named plans with the limit of a whole prediction in milliseconds."""
    small = Plan(
        model=read_model("llama-3.1-70b"),
        cluster=read_cluster("8 x dgx-h100"),
        recipe=Recipe(seq_len=8192, global_batch_size=64, recompute="full", tokens=1e12),
        layout=Layout(dp_shard=64),
    )
    large = Plan(
        model=read_model("llama-3.1-405b"),
        cluster=read_cluster("2048 x dgx-h100"),
        recipe=Recipe(seq_len=8192, global_batch_size=2048, tokens=15.6e12),
        layout=Layout(dp_shard=128, tp=8, pp=16, vpp=7, schedule="interleaved", sequence_parallel=True, zero_stage=1),
        engine="megatron",
    )
    experts = Plan(
        model=read_model("deepseek-v3-671b"),
        cluster=read_cluster("256 x hgx-h800"),
        recipe=Recipe(seq_len=4096, global_batch_size=15360, precision="fp8-mixed"),
        layout=Layout(dp_shard=128, pp=16, ep=64, schedule="dualpipev", zero_stage=1),
        engine="megatron",
    )
    node = Plan(
        model=read_model("llama-3.1-8b"),
        cluster=read_cluster("8xh100-sxm"),
        recipe=Recipe(seq_len=8192, global_batch_size=16),
        layout=Layout(dp_shard=8),
    )
    return (
        ("8B on 8", node, 3.0),
        ("70B on 64", small, 5.0),
        ("405B on 16,384", large, 30.0),
        ("671B of experts on 2,048", experts, 30.0),
    )


def milliseconds(run: Callable[[Plan], object], plan: Plan) -> float:
    """Mean CPU time of one call, after a first one that fills caches."""
    run(plan)
    start = process_time()
    for _ in range(REPEATS):
        run(plan)
    return (process_time() - start) / REPEATS * 1e3


def main() -> int:
    """Print a line per plan and compare with its limit."""
    exceeded = False
    for name, plan, limit_ms in plans():
        whole = milliseconds(predict, plan)
        parts = [milliseconds(part, plan) for part in (predict_memory, predict_time)]
        exceeded |= whole > limit_ms
        print(f"{name}: {whole:.2f} ms (memory {parts[0]:.2f}, time {parts[1]:.2f}; limit {limit_ms:.0f} ms)")
    return int(exceeded)


if __name__ == "__main__":
    sys.exit(main())

"""Four hundred plans drawn from the catalog: what their predictions add up to, and what more of anything does to it."""

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from shardwise.catalog import read_cluster
from shardwise.errors import ShardwiseError
from shardwise.families import read_model
from shardwise.layout import Layout
from shardwise.plan import Plan
from shardwise.predict import predict
from shardwise.prediction import Prediction
from shardwise.recipe import Recipe
from shardwise.rules import find_errors

NUM_PLANS, SEED = 400, 20261201
MODELS = ("gpt2-xl", "llama-3.2-1b", "llama-3.1-8b", "qwen3-30b-a3b", "mixtral-8x7b", "llama-3.1-70b", "deepseek-v3")
CLUSTERS = (
    *("1xrtx-4090", "8xa100-sxm-80", "8xh100-sxm", "8xh200-sxm", "8xl40s"),
    *("32xh100-sxm", "64xa100-sxm-80", "128xb200-sxm", "512xh100-sxm", "2048xh100-sxm"),
)
ENGINES = ("native", "torchtitan", "fsdp2", "megatron", "deepspeed", "nanotron")


def drawn(generator: random.Random) -> Plan | None:
    """A plan that keeps the rules, or nothing."""
    cluster = read_cluster(generator.choice(CLUSTERS))
    degrees = {axis: generator.choice((1, 1, 2, 4, 8)) for axis in ("tp", "pp", "cp")}
    others = degrees["tp"] * degrees["pp"] * degrees["cp"]
    if cluster.num_gpus % others:
        return None
    data = cluster.num_gpus // others
    copies = generator.choice([count for count in (1, 1, 2, 4, 8) if data % count == 0])
    stage = generator.choice((0, 1, 2, 3, 3))
    shards = (
        {"dp_shard": 1, "dp_replicate": data} if stage == 0 else {"dp_shard": data // copies, "dp_replicate": copies}
    )
    experts = generator.choice((1, 1, 2, 8))
    micro_batch_size, num_micro_batches = generator.choice((1, 2, 4)), generator.choice((1, 2, 8, 16))
    adapter = generator.choice(("none", "none", "none", "lora", "qlora"))
    try:
        recipe = Recipe(
            seq_len=generator.choice((1024, 4096, 8192, 32768)),
            micro_batch_size=micro_batch_size,
            global_batch_size=micro_batch_size * num_micro_batches * data,
            precision=generator.choice(("bf16-mixed", "bf16-mixed", "bf16", "fp8-mixed")),
            recompute=generator.choice(("none", "selective", "full")),
            optimizer=generator.choice(("adamw", "adamw", "adamw-8bit")),
            offload=generator.choice(("none", "none", "none", "optimizer", "parameters")),
            compile=generator.choice((True, False)),
            adapter=adapter,
            lora_targets="all-linear",
        )
        layout = Layout(**degrees, **shards, ep=experts, zero_stage=stage, sequence_parallel=degrees["tp"] > 1)
        plan = Plan(
            model=read_model(generator.choice(MODELS)),
            cluster=cluster,
            recipe=recipe,
            layout=layout,
            engine=generator.choice(ENGINES),
        )
    except ShardwiseError:
        return None
    return None if find_errors(plan) else plan


def drawn_plans() -> list[Plan]:
    generator = random.Random(SEED)
    plans: list[Plan] = []
    while len(plans) < NUM_PLANS:
        if (plan := drawn(generator)) is not None:
            plans.append(plan)
    return plans


@pytest.fixture(scope="module")
def sweep() -> list[tuple[Plan, Prediction]]:
    return [(plan, predict(plan)) for plan in drawn_plans()]


def test_numbers_of_a_prediction_follow_from_each_other(sweep):
    for plan, found in sweep:
        time, speed = found.time, found.throughput
        assert sum(entry.duration_s for entry in time.components) == pytest.approx(time.step_s, rel=1e-9)
        assert time.step_low_s <= time.step_s <= time.step_high_s
        tokens = plan.global_batch_size * plan.recipe.seq_len
        assert speed.tokens_per_s == pytest.approx(tokens / time.step_s, rel=1e-9)
        assert speed.tokens_per_s_per_gpu == pytest.approx(speed.tokens_per_s / plan.cluster.num_gpus, rel=1e-9)
        assert 0 < speed.mfu_fraction <= 1
        for stage in found.memory.stages:
            held = sum(entry.num_bytes for entry in stage.components)
            assert held == stage.device_used_bytes >= stage.peak_reserved_bytes >= stage.peak_allocated_bytes > 0


def changed(plan: Plan, **fields: object) -> Plan:
    return replace(plan, recipe=replace(plan.recipe, **fields))


def on_node(plan: Plan, **fields: object) -> Plan:
    return replace(plan, cluster=replace(plan.cluster, node=replace(plan.cluster.node, **fields)))


def longer(plan: Plan) -> Plan:
    return changed(plan, seq_len=2 * plan.recipe.seq_len)


def with_more_sequences(plan: Plan) -> Plan:
    recipe = plan.recipe
    return changed(plan, micro_batch_size=2 * recipe.micro_batch_size, global_batch_size=2 * plan.global_batch_size)


def with_twice_the_links(plan: Plan) -> Plan:
    node = plan.cluster.node
    return on_node(plan, scale_up_bandwidth_bytes_per_s=2 * node.scale_up_bandwidth_bytes_per_s)


def with_twice_the_network(plan: Plan) -> Plan:
    network = plan.cluster.node.network
    return on_node(plan, network=replace(network, bandwidth_bytes_per_s=2 * network.bandwidth_bytes_per_s))


def with_twice_the_memory(plan: Plan) -> Plan:
    node = plan.cluster.node
    return on_node(plan, gpu=replace(node.gpu, memory_bytes=2 * node.gpu.memory_bytes, nominal_memory_bytes=None))


def with_twice_the_replicas(plan: Plan) -> Plan:
    cluster = replace(plan.cluster, num_nodes=2 * plan.cluster.num_nodes)
    layout = replace(plan.layout, dp_replicate=2 * plan.layout.dp_replicate)
    return changed(replace(plan, cluster=cluster, layout=layout), global_batch_size=2 * plan.global_batch_size)


def compared(
    sweep: list[tuple[Plan, Prediction]], change: Callable[[Plan], Plan]
) -> list[tuple[Plan, Prediction, Prediction]]:
    pairs = []
    for plan, found in sweep:
        try:
            other = change(plan)
        except ShardwiseError:
            continue
        if not find_errors(other):
            pairs.append((plan, found, predict(other)))
    assert len(pairs) > NUM_PLANS / 2
    return pairs


SWITCHED = 0.005
"""NCCL sends larger messages by another protocol, which may be faster at once."""


@pytest.mark.parametrize("change", [longer, with_more_sequences])
def test_more_tokens_take_no_less_time_and_no_less_memory(sweep, change):
    for plan, found, more in compared(sweep, change):
        assert more.time.step_s >= found.time.step_s * (1 - SWITCHED), plan
        assert more.memory.worst.peak_allocated_bytes >= found.memory.worst.peak_allocated_bytes, plan


@pytest.mark.parametrize("change", [with_twice_the_links, with_twice_the_network])
def test_more_bandwidth_makes_no_step_longer(sweep, change):
    pairs = compared(sweep, change)
    for plan, found, faster in pairs:
        assert faster.time.step_s <= found.time.step_s * (1 + 1e-9), plan
    assert sum(faster.time.step_s < found.time.step_s for _, found, faster in pairs) > NUM_PLANS / 10


def test_more_memory_changes_what_is_left_alone(sweep):
    for plan, found, roomier in compared(sweep, with_twice_the_memory):
        assert roomier.time.step_s == found.time.step_s, plan
        assert roomier.memory.worst.peak_allocated_bytes == found.memory.worst.peak_allocated_bytes, plan
        assert roomier.memory.spare_bytes >= found.memory.spare_bytes, plan


def test_more_replicas_train_no_fewer_tokens_each_second_and_hold_no_more(sweep):
    """Where replicas span servers already: the second replica brings buckets and a network that one does without."""
    spanning = [(plan, found) for plan, found in sweep if plan.layout.dp_replicate > 1 and plan.cluster.num_nodes > 1]
    assert len(spanning) > NUM_PLANS / 4
    for plan, found in spanning:
        wider = predict(with_twice_the_replicas(plan))
        assert wider.throughput.tokens_per_s >= found.throughput.tokens_per_s, plan
        assert wider.memory.worst.peak_allocated_bytes <= 1.01 * found.memory.worst.peak_allocated_bytes, plan

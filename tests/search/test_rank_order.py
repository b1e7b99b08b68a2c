"""The order of ranks is not searched: of small clusters, no other order helps the layouts that a search ranks.

Every order of tp, shard group (cp inside it), replicas and pipeline is priced: the collectives of the slowest stage are
placed again with the strides of that order. What an order saves is compared with the step as if nothing of it hid.
"""

from dataclasses import replace
from itertools import permutations

import pytest

from shardwise.catalog import read_cluster
from shardwise.families import read_model
from shardwise.layout import Layout
from shardwise.plan import Plan
from shardwise.predict.communication import collective_time_s
from shardwise.predict.group_placement import place_group
from shardwise.predict.step_parts import step_parts
from shardwise.recipe import Recipe
from shardwise.search import search
from shardwise.search.simplicity import MAX_TIE_FRACTION
from shardwise.step.inventory import Collective

NEXT_TO_NOTHING = 0.002
CANONICAL = ("tp", "shard", "replicate", "pp")
AXIS_OF_GROUP = {"tp": "tp", "cp": "shard", "dp_shard": "shard", "dp_replicate": "replicate", "pp": "pp"}


def strides(plan: Plan, order: tuple[str, ...]) -> dict[str, int]:
    """Ranks from one member of a group to the next, the first axis innermost."""
    layout = plan.layout
    sizes = {"tp": layout.tp, "shard": layout.state_shard_size, "replicate": layout.dp_replicate, "pp": layout.pp}
    found, stride = {}, 1
    for axis in order:
        found[axis] = stride
        stride *= sizes[axis]
    return found


def communication_s(plan: Plan, calls: tuple[Collective, ...], order: tuple[str, ...]) -> float:
    """Seconds of all collectives of a step, one after the other."""
    stride_of, total_s = strides(plan, order), 0.0
    for call in calls:
        stride = stride_of[AXIS_OF_GROUP[call.axis]]
        crosses_nodes = plan.layout.pp * stride > plan.cluster.node.gpus_per_node
        placement = place_group(
            cluster=plan.cluster,
            size=call.group_size,
            stride=stride,
            is_chain=call.axis == "pp" and crosses_nodes,
        )
        total_s += call.count * collective_time_s(replace(call, stride=stride), placement=placement)
    return total_s


def saved_fraction(plan: Plan) -> float:
    """The most another order can save, over the step."""
    parts = step_parts(plan)
    calls = tuple(time.collective for time in parts.slowest.collectives)
    canonical_s = communication_s(plan, calls, CANONICAL)
    least_s = min(communication_s(plan, calls, order) for order in permutations(CANONICAL))
    return (canonical_s - least_s) / parts.step_s


@pytest.mark.parametrize(
    ("model", "cluster", "seq_len", "global_batch_size", "engine"),
    [
        ("llama-3.1-8b", "16xh100-sxm", 8192, 64, "native"),
        ("llama-3.1-8b", "2xdgx-a100-80", 2048, 128, "megatron"),
        ("llama-3.1-70b", "4xdgx-h100", 32768, 16, "megatron"),
        ("gpt2-xl", "8xl4", 1024, 64, "native"),
    ],
)
def test_no_other_order_of_ranks_changes_the_answer(model, cluster, seq_len, global_batch_size, engine):
    recipe = Recipe(seq_len=seq_len, global_batch_size=global_batch_size)
    result = search(model=read_model(model), cluster=read_cluster(cluster), recipe=recipe, engine=engine)
    recommended, *others = result.plans
    assert saved_fraction(recommended.plan) < NEXT_TO_NOTHING
    fastest_s = min(ranked.prediction.time.step_s for ranked in result.plans)
    for ranked in others:
        with_best_order_s = (1 - saved_fraction(ranked.plan)) * ranked.prediction.time.step_s
        assert with_best_order_s > (1 - MAX_TIE_FRACTION) * fastest_s


def test_another_order_is_priced_and_can_save():
    """Two copies of eight-way shards, each copy on both nodes: the replicas' all-reduce leaves the network."""
    recipe = Recipe(seq_len=8192, global_batch_size=64)
    layout = Layout(dp_replicate=2, dp_shard=8, exchange_gradients=False)
    plan = Plan(
        model=read_model("llama-3.1-8b"),
        cluster=read_cluster("16xh100-sxm"),
        recipe=recipe,
        layout=layout,
        engine="native",
    )
    assert strides(plan, ("tp", "replicate", "shard", "pp")) == {"tp": 1, "replicate": 1, "shard": 2, "pp": 16}
    assert 0 < saved_fraction(plan) < 0.1

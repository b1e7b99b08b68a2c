"""The candidate that lacks least when nothing fits."""

from dataclasses import replace
from itertools import product

import pytest

from shardwise.catalog import read_cluster
from shardwise.families import read_model
from shardwise.predict.memory import predict_fullest_memory
from shardwise.recipe import Recipe
from shardwise.rules import find_errors
from shardwise.search import IntRange, SearchBounds, search
from shardwise.search.nearest import nearest_plan, shortage_bytes
from shardwise.search.one_pass import find
from shardwise.units import GIB

ONE = IntRange(low=1, high=1)
FEW_ROWS = {"cp": ONE, "micro_batch_size": ONE, "schedule": ("1f1b",), "recompute": ("full",)}


@pytest.fixture(scope="module")
def two_gpus():
    """70B on two H100 whose server has 512 GiB for them."""
    recipe = Recipe(seq_len=4096, global_batch_size=16)
    return search(model=read_model("llama-3.1-70b"), cluster=read_cluster("2xh100-sxm"), recipe=recipe)


@pytest.mark.parametrize("host_memory_gib", [32, 96, 512])
def test_no_candidate_lacks_less_than_the_nearest(make_question, decorated, host_memory_gib):
    """Every row with every way to keep tensors on the host, predicted one by one."""
    cluster = read_cluster({"gpu": "t4", "gpus_per_node": 2, "num_nodes": 1, "host_memory_gib": host_memory_gib})
    question = replace(make_question(model="32B", seq_len=1024, precision="fp16-mixed"), cluster=cluster)
    pool = decorated(question, **FEW_ROWS)
    plain = [pool.rows.plan(row, question=question) for row in range(len(pool))]
    ways = product(plain, ("none", "optimizer", "parameters"), (False, True))
    every = [
        replace(plan, recipe=replace(plan.recipe, offload=offload, activation_offload=moves))
        for plan, offload, moves in ways
    ]
    least = min(shortage_bytes(predict_fullest_memory(plan), plan) for plan in every if not find_errors(plan))
    bounds = SearchBounds(**FEW_ROWS)
    plan, memory = nearest_plan(question, bounds, find(question, bounds))
    assert least > 0
    assert shortage_bytes(memory, plan) <= 1.001 * least


def test_a_share_of_what_the_host_lacks_counts_beside_what_the_device_lacks(two_gpus):
    """Twelve bytes a parameter for states and four for weights and gradients fill the host with 1.3 TB, of 512 GiB."""
    closest = two_gpus.closest
    assert closest.plan.recipe.offload == "parameters"
    assert closest.missing_bytes == 0
    memory = closest.prediction.memory
    assert memory.host_bytes_per_node - memory.host_capacity_bytes == pytest.approx(802 * GIB, rel=0.01)
    assert closest.lacks.endswith(" GiB of host memory per node")


def test_the_host_memory_that_is_lacking_is_proposed_and_the_nearest_number_of_gpus(two_gpus):
    changes = [relief.change for relief in two_gpus.closest.reliefs]
    [host] = [change for change in changes if change.startswith("host_memory_gib=")]
    assert host == "host_memory_gib=1536"
    [gpus] = [relief for relief in two_gpus.closest.reliefs if relief.change.startswith("num_gpus=")]
    assert 2 < gpus.plan.cluster.num_gpus <= 6


def test_where_nothing_fits_no_layout_is_called_slower_or_feasible(two_gpus):
    space = two_gpus.space
    assert (space.layouts_slower, space.layouts_feasible, space.layouts_predicted) == (0, 0, 0)
    assert space.layouts_considered == space.layouts_invalid + space.layouts_too_big
    [too_big] = [group for group in two_gpus.rejected if group.rule == "memory-capacity"]
    assert too_big.count == space.layouts_too_big

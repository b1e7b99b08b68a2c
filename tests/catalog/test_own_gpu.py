"""A part that is based on another one is predicted by what is known of that, whatever it is called."""

from dataclasses import replace

import pytest

from shardwise.catalog import read_cluster
from shardwise.errors import ClusterError
from shardwise.families import read_model
from shardwise.layout import Layout
from shardwise.plan import Plan
from shardwise.predict import predict
from shardwise.recipe import Recipe
from shardwise.units import GIB

PARTS = ("a100-sxm-40", "h100-sxm", "b200-sxm", "mi300x", "mi355x", "gaudi2", "l40s", "v100-sxm2-32")
CHANGES = ({}, {"memory_gib": 150}, {"memory_bandwidth_gb_per_s": 1111}, {"bf16_tflop_per_s": 222, "tdp_w": 333})


def _predicted(gpu):
    cluster = read_cluster({"gpu": gpu, "gpus_per_node": 8, "num_nodes": 1})
    recipe = Recipe(seq_len=1024, global_batch_size=16, micro_batch_size=1)
    layout = Layout(dp_shard=8, zero_stage=3)
    return predict(Plan(model=read_model("llama-3.2-1b"), cluster=cluster, recipe=recipe, layout=layout))


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: "+".join(change) or "as it is")
def test_a_name_changes_no_prediction(part, change):
    unnamed = _predicted({"based_on": part, **change})
    named = _predicted({"based_on": part, "name": "zzz", **change})
    assert named.time == unnamed.time
    assert named.memory == unnamed.memory


@pytest.mark.parametrize("part", PARTS)
def test_a_part_of_which_nothing_is_changed_is_the_catalogues(part):
    assert _predicted({"based_on": part, "name": "zzz"}).time == _predicted(part).time


def test_more_memory_in_a_file_is_the_machine_with_more_memory():
    base = read_cluster("8xa100-sxm-40")
    more_gib = base.gpu.memory_bytes / GIB + 8
    asked = read_cluster({"gpu": {"based_on": "a100-sxm-40", "name": "a100-48", "memory_gib": more_gib}, "num_gpus": 8})
    changed = replace(base.gpu, memory_bytes=base.gpu.memory_bytes + 8 * GIB)
    assert asked.gpu.memory_bytes == changed.memory_bytes
    assert (asked.gpu.id, asked.gpu.peaks, asked.gpu.arch) == (changed.id, changed.peaks, changed.arch)


@pytest.mark.parametrize(("num_gpus", "per_node"), [(4, 4), (8, 8), (24, 8), (12, 6), (7, 7), (11, 1)])
def test_servers_are_proposed_that_the_gpus_of_a_part_from_nothing_fill(num_gpus, per_node):
    asked = {"gpu": {"name": "rumour", "memory_gib": 100, "bf16_tflop_per_s": 600}, "num_gpus": num_gpus}
    with pytest.raises(ClusterError) as refused:
        read_cluster(asked)
    assert refused.value.fix == f"add gpus_per_node = {per_node}"
    assert read_cluster({**asked, "gpus_per_node": per_node}).num_gpus == num_gpus


@pytest.mark.parametrize("based_on", PARTS)
def test_no_part_trains_on_two_watts(based_on):
    with pytest.raises(ClusterError, match="tdp_w is 2"):
        _predicted({"name": "own", "based_on": based_on, "tdp_w": 2})


@pytest.mark.parametrize("tdp_w", [10, 50, 130, 700])
@pytest.mark.parametrize("based_on", ["h100-sxm", "b200-sxm"])
def test_a_part_of_any_power_limit_is_predicted(based_on, tdp_w):
    assert 0 < _predicted({"name": "own", "based_on": based_on, "tdp_w": tdp_w}).time.step_s < float("inf")

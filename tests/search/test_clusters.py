"""Clusters changed as hypotheses keep what the user said about them."""

import pytest

from shardwise.catalog import load_gpu, read_cluster
from shardwise.errors import ClusterError
from shardwise.search.clusters import (
    at_most,
    bigger_gpus,
    with_gpu,
    with_host_memory,
    with_num_nodes,
)
from shardwise.units import GIB

SMALL_HOST = {"node": "dgx-h100", "num_nodes": 1, "host_memory_gib": 64}


def test_other_gpus_keep_the_hosts_a_user_described():
    cluster = read_cluster(SMALL_HOST)
    bigger = with_gpu(cluster, load_gpu("h200-sxm"))
    assert bigger.node.host_memory_bytes == 64 * GIB
    assert with_num_nodes(cluster, 3).node.host_memory_bytes == 64 * GIB
    assert with_host_memory(cluster, 192).node.host_memory_bytes == 192 * GIB


@pytest.mark.parametrize(
    ("text", "max_gpus", "used"),
    [("64xh100-sxm", 40, 40), ("64xh100-sxm", 45, 40), ("64xh100-sxm", None, 64), ("8xh100-sxm", 3, 3), ("2xt4", 9, 2)],
)
def test_at_most_so_many_gpus_are_whole_nodes_or_part_of_one(text, max_gpus, used):
    assert at_most(read_cluster(text), max_gpus).num_gpus == used


def test_a_server_that_is_sold_whole_is_not_divided():
    with pytest.raises(ClusterError, match="less than one node of 8") as refusal:
        at_most(read_cluster("2xdgx-h100"), 4)
    assert "4xh100-sxm" in refusal.value.fix


@pytest.mark.parametrize(
    ("gpu", "nearest"),
    [("a100-sxm-80", "h200-sxm"), ("a100-sxm-40", "a100-sxm-80"), ("h100-sxm", "h200-sxm"), ("h200-sxm", "b200-sxm")],
)
def test_the_next_gpu_is_one_that_somebody_offers(gpu, nearest):
    """The HBM2e part of 96 GB between A100 and H200 has no price anywhere."""
    assert bigger_gpus(load_gpu(gpu))[0].id == nearest


def test_where_no_bigger_part_has_a_price_the_others_are_named():
    assert all(other.memory_bytes > load_gpu("mi300x").memory_bytes for other in bigger_gpus(load_gpu("mi300x")))


def test_a_server_that_lacks_gpus_lacks_them_with_other_parts_too():
    cluster = read_cluster("63xh100-sxm")
    assert with_gpu(cluster, load_gpu("h200-sxm")).num_gpus == cluster.num_gpus == 63

"""Sizes and types of the clusters of a sweep."""

import pytest

from shardwise.catalog import read_cluster
from shardwise.errors import ClusterError
from shardwise.search import IntRange, common_batch, parse_gpu_type, resized, sizes_in, typed_cluster


@pytest.mark.parametrize(
    ("low", "high", "values", "sizes"),
    [
        (8, 64, (), (8, 16, 32, 64)),
        (8, 96, (), (8, 16, 32, 64, 96)),
        (8, 8, (), (8,)),
        (3, 40, (3, 7, 40), (3, 7, 40)),
    ],
)
def test_an_interval_is_walked_in_doublings_and_a_list_as_it_is(low, high, values, sizes):
    assert sizes_in(IntRange(low=low, high=high, values=values)) == sizes


@pytest.mark.parametrize("limit", [IntRange(low=8, high=10_000_000), IntRange(low=1, high=1 << 20)])
def test_endless_and_very_many_sizes_are_refused(limit):
    with pytest.raises(ClusterError) as refused:
        sizes_in(limit)
    assert refused.value.code == "search-bounds"
    assert refused.value.fix == "write --gpus 8..512, or a list such as 8,64,512"


def test_a_price_of_the_user_replaces_the_one_of_the_catalogue():
    cluster = typed_cluster(parse_gpu_type("h100-sxm=2.10"), 16)
    assert cluster.num_gpus == 16
    assert cluster.price.usd_per_gpu_hour == 2.10


@pytest.mark.parametrize("price", ["", "cheap", "2,10"])
def test_what_is_no_price_is_refused(price):
    with pytest.raises(ClusterError) as refused:
        parse_gpu_type(f"h100-sxm={price}")
    assert refused.value.fix == "write h100-sxm=2.50, in dollars per GPU and hour"


def test_servers_are_not_divided():
    assert typed_cluster(parse_gpu_type("dgx-h100"), 12) == "12 GPUs do not fill dgx-h100 servers of 8"
    assert resized(read_cluster("2xdgx-h100"), 12) == "12 GPUs do not fill servers of 8"


@pytest.mark.parametrize("named", ["h100-sxm", "4xh100-sxm", "8xh100-sxm", "64xh100-sxm"])
@pytest.mark.parametrize("num_gpus", [1, 2, 4, 8, 16, 64])
def test_a_gpu_in_several_sizes_is_what_each_size_by_its_name_is(named, num_gpus):
    assert resized(read_cluster(named), num_gpus) == read_cluster(f"{num_gpus}xh100-sxm")


def test_more_of_a_gpu_than_one_server_holds_fill_usual_servers():
    found = resized(read_cluster("h100-sxm"), 64)
    assert (found.num_nodes, found.node.gpus_per_node, found.node.host_memory_bytes) == (8, 8, 2199023255552)
    assert resized(read_cluster("h100-sxm"), 12) == "12 GPUs do not fill servers of 8"


@pytest.mark.parametrize(
    ("described", "per_node"),
    [
        ({"gpu": "h100-sxm", "gpus_per_node": 4, "num_nodes": 2}, 4),
        ({"gpu": "h100-sxm", "gpus_per_node": 2, "num_nodes": 1, "host_memory_gib": 256}, 2),
        ({"node": "dgx-h100", "gpus_per_node": 4, "num_nodes": 1}, 4),
    ],
)
def test_servers_that_were_described_stay_as_large_as_they_are(described, per_node):
    assert resized(read_cluster(described), 16).node.gpus_per_node == per_node


def test_a_price_of_the_user_holds_for_more_of_the_same_gpu():
    one = read_cluster({"gpu": "h100-sxm", "num_gpus": 1, "usd_per_gpu_hour": 1.25})
    assert resized(one, 16).price.usd_per_gpu_hour == 1.25


def test_a_cluster_shrinks_below_a_node_only_where_gpus_are_sold_alone():
    assert resized(read_cluster("16xh100-sxm"), 4).num_gpus == 4
    assert "less than one node of 8" in resized(read_cluster("2xdgx-h100"), 4)


@pytest.mark.parametrize(
    ("sizes", "seq_len", "batch"),
    [
        ((3, 5, 7), 8192, 525),
        ((8, 16, 32, 64), 8192, 512),
        ((24, 8, 64), 8192, 576),
        ((8, 1024), 8192, 1024),
        ((64,), 4096, 1024),
    ],
)
def test_the_batch_of_a_sweep_is_a_multiple_of_all_its_clusters(sizes, seq_len, batch):
    found = common_batch(sizes, seq_len=seq_len, tokens=4 * 2**20, is_given=False)
    assert found.num_sequences == batch
    assert found.sentence.startswith(f"global_batch_size={batch}: none was given; the same on every cluster, a multi")
    assert "not a multiple" not in found.sentence


def test_a_size_that_no_batch_near_four_million_tokens_serves_is_named():
    """The least multiple of 509 and 511 is 260,099 sequences; 511 is the larger, and 8 no longer fits beside it."""
    found = common_batch((8, 509, 511), seq_len=8192, tokens=4 * 2**20, is_given=False)
    assert found.num_sequences == 511
    assert found.sentence.endswith("not a multiple of 8, 509 GPUs, which therefore cannot all read different sequences")


def test_tokens_that_are_asked_for_are_shared_by_all_clusters_too():
    """4e6 / 8192 = 488.3; 5 x 105 = 525 is 7.5 % off, 14 x 35 = 490 the first multiple of a divisor within 5 %."""
    found = common_batch((3, 5, 7), seq_len=8192, tokens=4e6)
    assert found.num_sequences == 490
    assert "not a multiple of 3 GPUs" in found.sentence

"""Clusters changed as hypotheses keep what the user said about them."""

from shardwise.catalog import load_gpu, read_cluster
from shardwise.search.clusters import with_fewer_gpus_per_node, with_gpu, with_host_memory, with_num_nodes
from shardwise.units import GIB

SMALL_HOST = {"node": "dgx-h100", "num_nodes": 1, "host_memory_gib": 64}


def test_other_gpus_keep_the_hosts_a_user_described():
    cluster = read_cluster(SMALL_HOST)
    bigger = with_gpu(cluster, load_gpu("h200-sxm"))
    assert bigger.node.host_memory_bytes == 64 * GIB
    assert with_num_nodes(cluster, 3).node.host_memory_bytes == 64 * GIB
    assert with_host_memory(cluster, 192).node.host_memory_bytes == 192 * GIB
    spread = with_fewer_gpus_per_node(cluster, 2)
    assert (spread.node.gpus_per_node, spread.num_nodes, spread.node.host_memory_bytes) == (4, 2, 64 * GIB)

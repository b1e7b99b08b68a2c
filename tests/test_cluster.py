"""Ranks, nodes and links: where a group lies, which link it needs and how fast that is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.catalog import read_cluster
from shardwise.cluster import blocks_spanned


def test_ranks_fill_node_after_node():
    cluster = read_cluster("3xdgx-h100")
    assert [cluster.node_of(rank) for rank in (0, 7, 8, 23)] == [0, 0, 1, 2]


@pytest.mark.parametrize(
    ("group_size", "stride", "nodes", "link", "gb_per_s"),
    [
        (1, 1, 1, "none", 0),
        (8, 1, 1, "scale_up", 450),
        (2, 4, 1, "scale_up", 450),
        (16, 1, 2, "network", 50),
        (8, 8, 8, "network", 50),
        (4, 2, 1, "scale_up", 450),
        (8, 2, 2, "network", 50),
        (64, 1, 8, "network", 50),
    ],
)
def test_groups_on_eight_dgx_h100(group_size, stride, nodes, link, gb_per_s):
    cluster = read_cluster("8xdgx-h100")
    assert cluster.nodes_spanned(group_size, stride) == nodes
    assert cluster.link_of(group_size, stride) == link
    assert cluster.group_bandwidth_bytes_per_s(group_size, stride) == gb_per_s * 1e9


@pytest.mark.parametrize(
    ("text", "group_size", "stride", "link", "gb_per_s"),
    [
        ("gb200-nvl72", 72, 1, "scale_up", 900),
        ("2xgb200-nvl72", 72, 1, "scale_up", 900),
        ("2xgb200-nvl72", 2, 72, "network", 50),
        ("2xgb200-nvl72", 16, 1, "network", 50),
        ("2xgb200-nvl72", 8, 1, "scale_up", 900),
        ("64xgb200", 64, 1, "scale_up", 900),
        ("8xmi300x", 2, 1, "scale_up", 64),
        ("8xmi300x", 8, 1, "scale_up", 448),
        ("8xh100-pcie", 8, 1, "scale_up", 63),
        ("8xh100-nvl", 2, 1, "scale_up", 300),
        ("8xh100-nvl", 4, 1, "host", 63),
        ("8xh100-nvl", 2, 2, "host", 63),
        ("2x8xh100-nvl", 16, 1, "network", 1.5625),
        ("16xtpu-v5e", 16, 1, "scale_up", 180),
        ("4xcpu", 4, 1, "scale_up", 1),
    ],
)
def test_groups_on_racks_meshes_pairs_and_hosts(text, group_size, stride, link, gb_per_s):
    cluster = read_cluster(text)
    assert cluster.link_of(group_size, stride) == link
    assert cluster.group_bandwidth_bytes_per_s(group_size, stride) == gb_per_s * 1e9


def test_sixteen_ranks_in_a_row_straddle_two_racks_of_72():
    """Ranks 64 to 79 lie on both sides of rank 72."""
    assert blocks_spanned(group_size=16, stride=1, block_size=72, num_ranks=144) == 2
    assert blocks_spanned(group_size=16, stride=1, block_size=72, num_ranks=64) == 1


@given(
    group_size=st.integers(1, 9), stride=st.integers(1, 13), block_size=st.integers(1, 13), num_tiles=st.integers(1, 7)
)
def test_the_closed_form_counts_what_enumeration_counts(group_size, stride, block_size, num_tiles):
    tile = group_size * stride
    worst = max(
        len({(start + r + i * stride) // block_size for i in range(group_size)})
        for start in range(0, num_tiles * tile, tile)
        for r in range(stride)
    )
    counted = blocks_spanned(group_size=group_size, stride=stride, block_size=block_size, num_ranks=num_tiles * tile)
    assert counted == worst


@given(st.integers(1, 64), st.sampled_from([1, 2, 4, 8, 16]))
def test_a_larger_group_never_needs_a_faster_link(group_size, stride):
    order = ("none", "scale_up", "host", "network")
    cluster = read_cluster("64xh100-sxm")
    smaller, larger = cluster.link_of(group_size, stride), cluster.link_of(group_size * 2, stride)
    assert order.index(smaller) <= order.index(larger)

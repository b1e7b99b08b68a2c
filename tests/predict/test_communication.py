"""Times of collectives against published sweeps, and properties of any link model."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from catalog.tables import rows
from shardwise.catalog import read_cluster
from shardwise.formulas.collective_volume import all_gather_factor, all_reduce_factor
from shardwise.predict.communication import collective_call, collective_time_s
from shardwise.predict.group_placement import place_group
from shardwise.predict.nccl_protocols import ARCH_LIMITS, PROTOCOLS
from shardwise.step.inventory import Collective
from shardwise.units import GIB, MIB


def call(kind, num_bytes, size, stride=1):
    return Collective(
        name="test",
        kind=kind,
        axis="dp_shard",
        group_size=size,
        num_bytes=num_bytes,
        count=1,
        phase="forward",
        is_overlappable=False,
        stride=stride,
    )


def placed(cluster_text, size, stride=1, **settings):
    return place_group(cluster=read_cluster(cluster_text), size=size, stride=stride, **settings)


def seconds(cluster_text, kind, num_bytes, size, stride=1):
    cluster = read_cluster(cluster_text)
    placement = place_group(cluster=cluster, size=size, stride=stride)
    return collective_time_s(call(kind, num_bytes, size, stride), placement=placement)


def bus_gb_per_s(cluster_text, kind, num_bytes, size):
    factor = all_reduce_factor if kind == "all_reduce" else all_gather_factor
    return factor(group_size=size) * num_bytes / seconds(cluster_text, kind, num_bytes, size) / 1e9


@pytest.mark.parametrize(
    ("cluster", "kind", "size", "measured", "tolerance"),
    [
        ("1 x dgx-h200", "all_gather", 8, 361, 0.03),
        ("1 x dgx-h200", "reduce_scatter", 8, 363, 0.03),
        ("1 x dgx-h200", "all_reduce", 8, 480, 0.03),
        ("1 x dgx-h200", "all_reduce", 4, 363, 0.03),
        ("1 x dgx-a100-640", "all_reduce", 8, 235, 0.03),
        ("1 x dgx-b200", "all_reduce", 8, 846, 0.03),
        ("1 x dgx-h200", "all_to_all", 8, 320, 0.04),
        ("2 x aws-p5.48xlarge", "all_reduce", 16, 487, 0.15),
        ("4 x aws-p6-b200.48xlarge", "all_reduce", 32, 382, 0.20),
        ("2 x aws-p4de.24xlarge", "all_reduce", 16, 78, 0.10),
    ],
)
def test_large_messages_reach_the_published_bus_bandwidth(cluster, kind, size, measured, tolerance):
    """16 GiB plateaus of nccl-tests (stas00/ml-engineering, AWS documentation, NVIDIA slides)."""
    assert bus_gb_per_s(cluster, kind, 16 * GIB, size) == pytest.approx(measured, rel=tolerance)


def test_four_gigabytes_over_four_b200_nodes():
    """Measured 22.05 ms; without overlap of the two levels 26.3, with perfect links 16.1."""
    duration_s = seconds("4 x dgx-b200", "all_reduce", 4 * GIB, 32)
    assert 16.1e-3 <= duration_s <= 26.3e-3


def test_a_tiny_all_reduce_takes_ncclls_latency():
    """8 bytes on 8 H100: 12.9 us measured, 15.0 by NCCL's own formula."""
    assert seconds("1 x dgx-h100", "all_reduce", 8, 8) == pytest.approx(15.0e-6, abs=0.2e-6)


def test_gathers_over_a_thousand_ranks_pay_for_every_hop():
    """127 network and 896 NVLink steps: 2.2 ms by NCCL's means of LL128, 2.4 times that with waits, and the bytes."""
    duration_s = seconds("128 x dgx-h100", "all_gather", 64 * MIB, 1024)
    assert 5.3e-3 < duration_s < 5.8e-3
    assert seconds("1 x dgx-h100", "all_gather", 64 * MIB, 8) < duration_s / 5


def test_all_reduce_scales_better_than_all_gather():
    """Trees: the latency of an all-reduce grows with the logarithm of the nodes, that of a gather with the nodes."""
    reduce_ratio = seconds("128 x dgx-h100", "all_reduce", MIB, 1024) / seconds("4 x dgx-h100", "all_reduce", MIB, 32)
    gather_ratio = seconds("128 x dgx-h100", "all_gather", MIB, 1024) / seconds("4 x dgx-h100", "all_gather", MIB, 32)
    assert reduce_ratio < 3 < gather_ratio


def test_a_mesh_without_a_switch_is_slow_for_two():
    """MI300X: 47.7 GB/s for 2 GPUs against 312.9 for 8."""
    assert bus_gb_per_s("1 x oci-bm.gpu.mi300x.8", "all_reduce", 4 * GIB, 8) == pytest.approx(312.9, rel=0.05)
    assert bus_gb_per_s("1 x oci-bm.gpu.mi300x.8", "all_reduce", 4 * GIB, 2) == pytest.approx(47.7, rel=0.10)


def test_ranks_of_one_node_use_its_nics_together():
    """Alone in its node a rank has one NIC; eight ranks of one group have eight, and then NVLink is the limit."""
    together = seconds("4 x dgx-h100", "all_gather", 8 * GIB, 32)
    alone = seconds("4 x dgx-h100", "all_gather", 8 * GIB, 4, stride=8)
    assert alone == pytest.approx(3 / 4 * 8 * GIB / 48e9, rel=0.01)
    assert together == pytest.approx(31 / 32 * 8 * GIB / (450e9 * 0.81), rel=0.02)


def test_one_rank_per_node_gathers_in_logarithmic_time():
    """NCCL's parallel aggregated trees, which keep a linear part of 2.8 us a rank; a ring takes 14 us and more."""
    few = seconds("16 x dgx-h100", "all_gather", 4096, 16, stride=8)
    many = seconds("256 x dgx-h100", "all_gather", 4096, 256, stride=8)
    assert many / few < 11
    assert collective_call(call("all_gather", 4096, 16, 8), placement=placed("16 x dgx-h100", 16, 8)).algorithm == "pat"


def test_expert_exchange_leaves_the_node_only_in_part():
    inside = seconds("1 x dgx-h100", "all_to_all", GIB, 8)
    across = seconds("4 x dgx-h100", "all_to_all", GIB, 32)
    leaving = GIB * 24 / 32 / (50e9 * 0.96)
    assert across == pytest.approx(leaving, rel=0.02)
    assert inside < across


def test_a_group_of_one_takes_no_time():
    assert seconds("1 x dgx-h100", "all_reduce", GIB, 1) == 0


@given(
    kind=st.sampled_from(["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv", "broadcast"]),
    num_bytes=st.integers(1, 2**40),
    size=st.sampled_from([2, 4, 8, 16, 64]),
    stride=st.sampled_from([1, 2, 8]),
)
def test_more_bandwidth_is_never_slower_and_more_bytes_never_faster(kind, num_bytes, size, stride):
    cluster = read_cluster("128 x dgx-h100")
    node = cluster.node
    faster = replace(
        cluster,
        node=replace(
            node,
            scale_up_bandwidth_bytes_per_s=2 * node.scale_up_bandwidth_bytes_per_s,
            gpu=replace(node.gpu, peer_bandwidth_bytes_per_s=2 * node.gpu.peer_bandwidth_bytes_per_s),
            network=replace(node.network, bandwidth_bytes_per_s=2 * node.network.bandwidth_bytes_per_s),
        ),
    )
    slow, quick = (
        collective_time_s(
            call(kind, num_bytes, size, stride), placement=place_group(cluster=which, size=size, stride=stride)
        )
        for which in (cluster, faster)
    )
    placement = place_group(cluster=cluster, size=size, stride=stride)
    double = collective_time_s(call(kind, 2 * num_bytes, size, stride), placement=placement)
    assert 0 < quick <= slow <= double


def test_latency_constants_are_those_of_the_catalogue():
    table = {
        (line["name"], line["algorithm"], line["protocol"], line["scope"]): float(line["value"])
        for line in rows("nccl_constants")
        if line["name"] in ("baseLatency", "hwLatency")
    }
    for protocol, name in zip(PROTOCOLS, ("LL", "LL128", "Simple"), strict=True):
        assert protocol.ring_base_us == table["baseLatency", "Ring", name, "any"]
        assert protocol.tree_base_us == table["baseLatency", "Tree", name, "any"]
        for link, suffix in (("NVLINK", "scale_up"), ("PCI", "pcie"), ("NET", "network")):
            assert getattr(protocol, f"ring_{suffix}_us") == table["hwLatency", "Ring", name, link]
            assert getattr(protocol, f"tree_{suffix}_us") == table["hwLatency", "Tree", name, link]


def test_the_low_latency_limits_are_those_of_the_catalogue():
    table = {
        (line["scope"].split()[0], line["nodes_class"]): float(line["value"])
        for line in rows("nccl_constants")
        if line["name"] == "llMaxBw"
    }
    for limits in ARCH_LIMITS:
        expected = [table[limits.arch, nodes] for nodes in ("1 node", "2 nodes", "4+ nodes")]
        assert [limit / 1e9 for limit in limits.low_latency] == expected

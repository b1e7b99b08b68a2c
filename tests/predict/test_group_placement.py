"""Where groups lie: rails, shared NICs, bridged pairs, racks, oversubscribed fabrics, and figures that are missing."""

from dataclasses import replace

import pytest

from shardwise.catalog import read_cluster
from shardwise.families import read_model
from shardwise.layout import Layout
from shardwise.plan import Plan
from shardwise.predict import predict
from shardwise.predict.communication import collective_curve
from shardwise.predict.group_placement import place_group, placement_doubts
from shardwise.recipe import Recipe
from shardwise.units import GIB, MIB


def seconds(cluster, kind, num_bytes, size, stride=1, **settings):
    placement = place_group(cluster=read_cluster(cluster), size=size, stride=stride, **settings)
    return collective_curve(kind, placement).time_s(num_bytes)


def test_groups_of_one_axis_share_the_one_nic_of_their_node():
    """Eight groups of strided ranks run at once: each has an eighth of 100 Gb/s of which sockets reach 80 %."""
    placement = place_group(cluster=read_cluster("4 x gcp-a2-ultragpu-8g"), size=4, stride=8)
    assert placement.network_bandwidth_bytes_per_s == pytest.approx(12.5e9 / 8 * 0.8, rel=0.01)


def test_ranks_of_one_group_in_one_node_add_up_their_rails():
    """The eight ranks of a group reduce inside the node first: an eighth of the payload crosses by each NIC."""
    many = seconds("8 x azure-nd96amsr-a100-v4", "all_reduce", 8 * GIB, 64)
    alone = seconds("8 x azure-nd96amsr-a100-v4", "all_reduce", 8 * GIB, 8, stride=8)
    assert alone / many > 5


def test_a_rack_is_one_domain_and_two_racks_are_two_hosts():
    rack = place_group(cluster=read_cluster("18 x gb200-nvl72-tray"), size=72, stride=1)
    racks = place_group(cluster=read_cluster("36 x gb200-nvl72-tray"), size=144, stride=1)
    assert (rack.num_domains, rack.num_hosts, rack.ranks_per_domain) == (1, 1, 72)
    assert (racks.num_domains, racks.num_hosts, racks.ranks_per_host) == (2, 2, 72)


def test_bridged_pairs_meet_over_pcie():
    pair = place_group(cluster=read_cluster("1 x azure-nc96ads-a100-v4"), size=2, stride=1)
    four = place_group(cluster=read_cluster("1 x azure-nc96ads-a100-v4"), size=4, stride=1)
    assert not pair.is_pcie
    assert four.is_pcie
    assert four.host_bandwidth_bytes_per_s == pytest.approx(31.5e9 * 0.762)
    four_s, pair_s = (seconds("1 x azure-nc96ads-a100-v4", "all_reduce", GIB, size) for size in (4, 2))
    assert 4 < four_s / pair_s < 8


def test_an_all_to_all_over_two_sockets_is_slow():
    """12 GB/s of 63 on eight GPUs behind PCIe 5 (NVIDIA slides), where an all-reduce reaches 41 to 48."""
    duration_s = seconds("1 x generic-8x-rtxpro6000", "all_to_all", 8 * GIB, 8)
    assert 7 / 8 * 8 * GIB / duration_s / 1e9 == pytest.approx(12, rel=0.02)


OVERSUBSCRIBED = {
    "node": "dgx-h100",
    "num_nodes": 64,
    "network_oversubscription_ratio": 8,
    "network_pod_gpus": 128,
}
FLAT = {"node": "dgx-h100", "num_nodes": 64}


@pytest.mark.parametrize(
    ("kind", "size", "stride", "ratio"),
    [
        ("all_gather", 8, 8, 1.0),  # inside one pod
        ("all_to_all", 64, 1, 1.0),
        ("all_gather", 64, 8, 1.0),  # 16 hosts in each pod: one hop in 16 leaves it
        ("send_recv", 2, 128, 8.0),  # all neighbours lie in other pods
        ("all_to_all", 512, 1, 8 * 384 / 504),  # three quarters of the bytes leave the pod
    ],
)
def test_fewer_links_above_a_pod_slow_what_leaves_it(kind, size, stride, ratio):
    slow, fast = (
        place_group(cluster=read_cluster(which), size=size, stride=stride) for which in (OVERSUBSCRIBED, FLAT)
    )
    field = {
        "all_gather": "network_bandwidth_bytes_per_s",
        "all_to_all": "network_exchange_bytes_per_s",
        "send_recv": "network_message_bytes_per_s",
    }[kind]
    assert getattr(fast, field) / getattr(slow, field) == pytest.approx(ratio)


@pytest.mark.parametrize(
    ("network", "gbit_per_s"), [("eth-25", 25), ("eth-100", 100), ("efa-v1", 400), ("ib-hdr", 1600)]
)
def test_no_fabric_is_faster_than_its_wire(network, gbit_per_s):
    cluster = {"gpu": "a100-sxm-80", "gpus_per_node": 8, "num_nodes": 4, "network": network}
    wire_s = 2 * 3 / 4 * GIB / (gbit_per_s / 8 * 1e9)
    assert wire_s < seconds(cluster, "all_reduce", GIB, 32) < 4 * wire_s + 0.01


def test_slow_networks_pay_their_latency_at_every_hop():
    fast, slow = (
        seconds({"node": "dgx-h100", "num_nodes": 4, "network_latency_us": latency_us}, "all_reduce", 8, 32)
        for latency_us in (3, 55)
    )
    assert slow - fast == pytest.approx(2 * 2 * 50e-6, rel=0.01)


def test_the_end_of_a_node_inside_a_stage_is_crossed_by_some_neighbours():
    """Stages of two GPUs on nodes of eight: of the chain's neighbours, the fourth and fifth stage lie apart."""
    cluster = read_cluster("2 x dgx-h100")
    inside = place_group(cluster=cluster, size=2, stride=2)
    chain = place_group(cluster=cluster, size=2, stride=2, is_chain=True)
    assert (inside.num_hosts, chain.num_hosts) == (1, 2)
    assert place_group(cluster=read_cluster("1 x dgx-h100"), size=2, stride=2, is_chain=True).num_hosts == 1


def without_links():
    cluster = read_cluster("4 x dgx-h100")
    gpu = replace(cluster.gpu, scale_up_bandwidth_bytes_per_s=0.0, pcie_bandwidth_bytes_per_s=0.0)
    network = replace(cluster.node.network, latency_s=0.0, kind="mystery", achieved_fraction=0.0)
    node = replace(cluster.node, gpu=gpu, scale_up="", scale_up_bandwidth_bytes_per_s=0.0, network=network)
    return replace(cluster, node=node)


def test_missing_figures_widen_the_band_and_say_so():
    doubts = placement_doubts(without_links())
    assert any("no rate of its links is known" in text for text in doubts)
    assert any("no latency is known" in text for text in doubts)
    assert placement_doubts(read_cluster("4 x dgx-h100")) == ()
    model, recipe = read_model("llama-3.1-8b"), Recipe(seq_len=4096, micro_batch_size=1)
    unsure, sure = (
        predict(Plan(model=model, cluster=cluster, recipe=recipe, layout=Layout(dp_shard=32)))
        for cluster in (without_links(), read_cluster("4 x dgx-h100"))
    )
    widths = [p.time.step_high_s / p.time.step_low_s for p in (unsure, sure)]
    assert widths[0] > 1.2 * widths[1]
    assert set(doubts) <= set(unsure.assumptions)


@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv", "broadcast"])
@pytest.mark.parametrize(("size", "stride"), [(2, 1), (8, 1), (32, 1), (4, 8)])
def test_missing_figures_never_crash(kind, size, stride):
    placement = place_group(cluster=without_links(), size=size, stride=stride)
    assert 0 < collective_curve(kind, placement).time_s(MIB) < 1


@pytest.mark.parametrize(
    ("machine", "num_rails", "size", "ratio"),
    [
        ("dgx-h100", 8, 64, 1.0),  # NVLink moves rows to the GPU of their rail
        ("dgx-h100", 8, 512, 8 * 384 / 504),  # as without rails
        ("pcie", 1, 64, 1.0),  # one switch for the NICs of a server
        ("pcie", 8, 64, 8 * 7 / 8),  # seven of eight rows are for another rail
        ("pcie", 8, 512, 8 * (384 + 120 * 7 / 8) / 504),
    ],
)
def test_rails_slow_exchanges_where_nothing_moves_rows_between_them(machine, num_rails, size, ratio):
    """128 GPUs a pod and eight times the bandwidth below its switches."""
    machines = {"dgx-h100": {"node": "dgx-h100"}, "pcie": {"gpu": "l40s", "gpus_per_node": 8, "network": "ib-ndr"}}
    flat = {**machines[machine], "num_nodes": 64}
    railed = {**flat, "network_oversubscription_ratio": 8, "network_pod_gpus": 128, "network_rails": num_rails}
    slow, fast = (place_group(cluster=read_cluster(one), size=size, stride=1) for one in (railed, flat))
    assert fast.network_exchange_bytes_per_s / slow.network_exchange_bytes_per_s == pytest.approx(ratio)
    if size == 64:
        assert slow.network_bandwidth_bytes_per_s == fast.network_bandwidth_bytes_per_s
        assert slow.network_message_bytes_per_s == fast.network_message_bytes_per_s


def test_a_rack_of_36_gpus_is_two_hosts_where_one_of_72_is_one():
    rack = {"node": "gb200-nvl72", "num_nodes": 2}
    whole, halves = (
        place_group(cluster=read_cluster({**rack, **domain}), size=72, stride=1)
        for domain in ({}, {"scale_up_domain_gpus": 36})
    )
    assert (whole.num_hosts, whole.network_bandwidth_bytes_per_s) == (1, 0)
    assert halves.num_hosts == 2
    gathers, exchanges = (
        [collective_curve(kind, one).time_s(256 * MIB) for one in (whole, halves)]
        for kind in ("all_gather", "all_to_all")
    )
    assert gathers[1] > 1.1 * gathers[0]  # 36 rails carry one hop
    assert exchanges[1] > 4 * exchanges[0]  # half of the bytes leave the domain

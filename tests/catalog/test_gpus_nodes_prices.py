"""Loaders: records in base units, literal facts, the order of prices, and errors for ids that are not there."""

import pytest

from catalog.tables import rows
from shardwise.catalog import load_gpu, load_gpus, load_networks, load_node, load_nodes, load_prices, read_cluster
from shardwise.catalog.hardware.networks import network_between_nodes
from shardwise.catalog.hardware.prices import prices_of
from shardwise.errors import ClusterError
from shardwise.units import GIB


def test_the_catalogue_holds_what_the_files_hold():
    assert [gpu.id for gpu in load_gpus()] == [line["id"] for line in rows("accelerators")]
    assert [node.id for node in load_nodes()] == [line["id"] for line in rows("nodes")]
    assert [link.id for link in load_networks()] == [line["id"] for line in rows("networks")]
    assert [price.gpu_id for price in load_prices()] == [line["accelerator_id"] for line in rows("prices")]


def test_an_h100_in_base_units():
    gpu = load_gpu("h100-sxm")
    assert gpu.memory_bytes == 85_018_877_624
    assert gpu.nominal_memory_bytes == 80_000_000_000
    assert gpu.memory_bandwidth_bytes_per_s == 3.35e12
    assert gpu.peak_flop_per_s("bf16") == 989.5e12
    assert gpu.peak_flop_per_s("fp4") == 0
    assert gpu.sm_count == 132
    assert gpu.pcie_bandwidth_bytes_per_s == 63e9
    assert gpu.source == "STAS-ACC;OOM;LIGHT;TT-FLOPS;STAS-NET"


def test_a_part_without_bf16_has_no_bf16_peak():
    assert load_gpu("v100-sxm2-32").peak_flop_per_s("bf16") == 0
    assert load_gpu("v100-sxm2-32").peak_flop_per_s("fp16") == 125e12


def test_a_superchip_reaches_its_host_over_c2c():
    assert load_gpu("gh200-96").pcie_bandwidth_bytes_per_s == 450e9


def test_a_dgx_h100_in_base_units():
    node = load_node("dgx-h100")
    assert node.gpu is load_gpu("h100-sxm")
    assert node.gpus_per_node == 8
    assert node.scale_up_bandwidth_bytes_per_s == 450e9
    assert node.network.id == "ib-ndr"
    assert node.network.bandwidth_bytes_per_s == 50e9
    assert node.network.latency_s == pytest.approx(2.8e-6)
    assert node.network.achieved_fraction == 0.96
    assert node.host_memory_bytes == 2048 * GIB
    assert node.nvme_bytes == 30_700_000_000_000
    assert node.num_nics == 8


@pytest.mark.parametrize(
    ("node_id", "network", "gb_per_s_per_gpu"),
    [
        ("aws-p5.48xlarge", "efa-v2", 50),
        ("aws-p4d.24xlarge", "efa-v1", 6.25),
        ("aws-p6-b300.48xlarge", "efa-v4-b300", 100),
        ("azure-nd96isr-h100-v5", "ib-ndr", 50),
        ("gcp-a3-highgpu-8g", "gcp-tcpx", 12.5),
        ("dgx-a100-640", "ib-hdr", 25),
        ("gb300-nvl72-tray", "ib-xdr", 100),
    ],
)
def test_fabrics_of_known_servers(node_id, network, gb_per_s_per_gpu):
    node = load_node(node_id)
    assert node.network.id == network
    assert node.network.bandwidth_bytes_per_s == gb_per_s_per_gpu * 1e9
    assert not node.network.is_assumed


def test_an_unknown_fabric_is_a_flagged_modest_one():
    network = load_node("oci-bm.gpu4.8").network
    assert network.is_assumed
    assert network.bandwidth_bytes_per_s == 12.5e9 / 8


@pytest.mark.parametrize(
    ("node_id", "scale_up", "domain", "gb_per_s"),
    [
        ("aws-g5.48xlarge", "PCIe", 8, 31.5),
        ("generic-8x-rtxpro6000", "PCIe", 8, 63),
        ("azure-nc96ads-a100-v4", "NVLink bridge", 2, 300),
        ("azure-nc80adis-h100-v5", "NVLink bridge", 2, 300),
        ("dgx-b200", "NVLink", 8, 900),
        ("oci-bm.gpu.mi300x.8", "xGMI", 8, 448),
    ],
)
def test_fast_domains_of_known_servers(node_id, scale_up, domain, gb_per_s):
    node = load_node(node_id)
    assert (node.scale_up, node.scale_up_domain_gpus) == (scale_up, domain)
    assert node.scale_up_bandwidth_bytes_per_s == gb_per_s * 1e9


@pytest.mark.parametrize(
    ("link", "gpus_per_node", "gb_per_s_per_gpu"),
    [("ib-ndr", 4, 50), ("roce-200", 8, 25), ("eth-100", 8, 1.5625), ("eth-100", 1, 12.5), ("efa-v2", 8, 50)],
)
def test_a_rail_belongs_to_a_gpu_and_a_port_to_the_node(link, gpus_per_node, gb_per_s_per_gpu):
    network = network_between_nodes(link, gpus_per_node=gpus_per_node)
    assert network.bandwidth_bytes_per_s == gb_per_s_per_gpu * 1e9


@pytest.mark.parametrize("link", ["nvlink-4", "pcie5-x16", "deepep-ib-a2a", "xgmi-mi300x"])
def test_a_link_inside_the_node_is_no_fabric(link):
    with pytest.raises(ClusterError, match="is not a fabric between nodes") as caught:
        network_between_nodes(link, gpus_per_node=8)
    assert caught.value.code == "cluster-network"


def test_a_gpu_that_is_named_alone_has_no_provider():
    """Eight L40S cost AWS's price, as their usual server is AWS's, beside H100 at the specialists' median."""
    alone, rented = read_cluster("8xl40s"), read_cluster("1xaws-g6e.48xlarge")
    assert (alone.price.kind, alone.price.usd_per_gpu_hour) == ("specialist_median", 1.5372)
    assert (rented.price.kind, rented.price.provider) == ("on_demand", "AWS")


def test_the_default_price_is_the_specialist_median_with_its_date():
    price = load_node("dgx-h100").prices[0]
    assert (price.usd_per_gpu_hour, price.kind, price.date) == (2.82, "specialist_median", "2026-03-16")


@pytest.mark.parametrize(
    ("node_id", "usd_per_gpu_hour"),
    [
        ("aws-p5.48xlarge", 6.88),
        ("oci-bm.gpu.h100.8", 10.0),
        ("azure-nd96isr-h100-v5", 12.29),
        ("lambda-gpu_8x_a100_80gb_sxm4", 2.79),
        ("gcp-a3-highgpu-8g", 11.0612),
    ],
)
def test_a_named_instance_costs_its_own_price(node_id, usd_per_gpu_hour):
    price = load_node(node_id).prices[0]
    assert (price.usd_per_gpu_hour, price.kind) == (usd_per_gpu_hour, "on_demand")


def test_spot_is_never_the_default_and_comes_last():
    for node in load_nodes():
        kinds = [price.kind for price in node.prices]
        assert "spot" not in kinds[:1]
        assert kinds == [k for k in kinds if k != "spot"] + [k for k in kinds if k == "spot"]


@pytest.mark.parametrize(("gpu_id", "usd"), [("a100-sxm-80", 2.0), ("h100-sxm", 3.5)])
def test_the_textbook_prices_are_rows_of_kind_assumed(gpu_id, usd):
    assert [price.usd_per_gpu_hour for price in prices_of(gpu_id) if price.kind == "assumed"] == [usd]


def test_a_part_without_an_hourly_price_has_none():
    assert prices_of("gb10-spark") == ()


def test_every_price_has_provider_date_kind_and_source():
    for price in load_prices():
        assert price.provider
        assert price.date
        assert price.kind
        assert price.source
        assert price.usd_per_gpu_hour > 0


@pytest.mark.parametrize("load", [load_gpu, load_node])
def test_an_id_that_is_not_there_is_an_error_with_a_fix(load):
    with pytest.raises(ClusterError) as caught:
        load("h1000-sxm")
    assert caught.value.code == "cluster-unknown"
    assert caught.value.fix.startswith("list the ids with `shardwise catalog")


def test_a_missing_bf16_rate_is_unpublished_only_where_the_part_has_units_for_narrower_floats():
    """GB10 has fp4 units and no published bf16 rate; Volta and Turing have no bf16 units."""
    assert [gpu.id for gpu in load_gpus() if gpu.is_bf16_peak_unpublished] == ["gb10-spark"]

"""Mappings and files to a cluster: the plan contract, overrides, a user's own GPU, and refusals."""

import json
import math
from pathlib import Path

import pytest

from shardwise.catalog import read_cluster
from shardwise.errors import ClusterError
from shardwise.units import GIB

ROOT = Path(__file__).parents[2]


def refusal(source):
    with pytest.raises(ClusterError) as caught:
        read_cluster(source)
    return caught.value


def test_the_two_forms_of_the_plan_contract():
    by_node = read_cluster({"node": "dgx-h100", "num_nodes": 2})
    assert (by_node.num_gpus, by_node.node.id) == (16, "dgx-h100")
    by_gpu = read_cluster({"gpu": "h100-sxm", "gpus_per_node": 4, "num_nodes": 1, "network": "ib-ndr"})
    assert (by_gpu.num_gpus, by_gpu.gpu.id, by_gpu.node.network.id) == (4, "h100-sxm", "ib-ndr")


def test_a_mapping_and_the_text_of_it_are_the_same_cluster():
    assert read_cluster({"gpu": "h100-sxm", "num_gpus": 64}) == read_cluster("64xh100-sxm")
    assert read_cluster({"node": "p5.48xlarge", "num_nodes": 8}) == read_cluster("8xp5.48xlarge")


def test_overrides_replace_catalogue_figures():
    cluster = read_cluster(
        {
            "gpu": "h100-sxm",
            "gpus_per_node": 8,
            "num_nodes": 3,
            "memory_gib": 63,
            "usd_per_gpu_hour": 1.7,
            "price_source": "contract",
            "price_date": "2026-09-01",
            "host_memory_gib": 500,
            "nvme_tb": 7,
            "scale_up_gb_per_s": 225,
            "network_gbit_per_s_per_node": 1600,
            "network_latency_us": 11,
            "name": "ours",
        }
    )
    node = cluster.node
    assert cluster.gpu.memory_bytes == 63 * GIB
    assert cluster.gpu.nominal_memory_bytes == 0
    assert node.host_memory_bytes == 500 * GIB
    assert node.nvme_bytes == 7_000_000_000_000
    assert node.scale_up_bandwidth_bytes_per_s == 225e9
    assert node.scale_up_bandwidth_of(2) == 225e9
    assert node.network.bandwidth_bytes_per_s == 25e9
    assert node.network.latency_s == pytest.approx(11e-6)
    assert node.name == "ours"
    assert cluster.price is not None
    assert (cluster.price.usd_per_gpu_hour, cluster.price.kind) == (1.7, "user")
    assert (cluster.price.source, cluster.price.date) == ("contract", "2026-09-01")


def test_a_rate_per_gpu_is_taken_as_it_is():
    cluster = read_cluster({"gpu": "a100-sxm-80", "num_gpus": 16, "network_gb_per_s_per_gpu": 12.5})
    assert cluster.node.network.bandwidth_bytes_per_s == 12.5e9
    assert "ib-hdr" not in " ".join(cluster.assumptions)


def test_faster_links_on_a_mesh_keep_the_share_of_one_peer():
    node = read_cluster({"gpu": "mi300x", "num_gpus": 8, "scale_up_gb_per_s": 700}).node
    assert node.scale_up_bandwidth_of(2) == pytest.approx(100e9)
    assert node.scale_up_bandwidth_of(8) == pytest.approx(700e9)


def test_a_named_fabric_with_rails_says_one_nic_per_gpu():
    cluster = read_cluster({"gpu": "a100-sxm-80", "num_nodes": 4, "network": "roce-100"})
    assert cluster.node.network.bandwidth_bytes_per_s == 12.5e9
    assert "roce-100: one NIC per GPU is assumed" in cluster.assumptions


def test_memory_of_the_cpu_cluster_can_be_given():
    assert read_cluster({"gpu": "cpu", "gpus_per_node": 2, "memory_gib": 1.5}).gpu.memory_bytes == 1.5 * GIB


OWN_GPU = {
    "name": "next-gpu",
    "memory_gib": 280,
    "memory_bandwidth_gb_per_s": 13000,
    "bf16_tflop_per_s": 4000,
    "scale_up_gb_per_s": 1800,
    "pcie_gb_per_s": 121,
}


def test_a_gpu_from_nothing():
    cluster = read_cluster({"gpu": OWN_GPU, "gpus_per_node": 8, "num_nodes": 2, "network_gbit_per_s_per_node": 6400})
    gpu = cluster.gpu
    assert (gpu.id, gpu.confidence, gpu.source) == ("next-gpu", "user", "user")
    assert gpu.memory_bytes == 280 * GIB
    assert gpu.peak_flop_per_s("bf16") == 4000e12
    assert gpu.peak_flop_per_s("fp8") == 0
    assert cluster.node.scale_up_bandwidth_bytes_per_s == 1800e9
    assert cluster.node.network.bandwidth_bytes_per_s == 100e9
    assert cluster.price is None
    assert cluster.assumptions == ()


def test_what_a_user_leaves_out_is_assumed_modestly_and_said():
    own = {key: value for key, value in OWN_GPU.items() if key != "pcie_gb_per_s"}
    cluster = read_cluster({"gpu": own, "gpus_per_node": 8, "num_nodes": 2})
    assert cluster.gpu.pcie_bandwidth_bytes_per_s == 31.5e9
    assert cluster.node.network.is_assumed
    assert [text.partition(":")[0] for text in cluster.assumptions] == [
        "next-gpu",
        "eth-100 between servers is assumed, 1.5625 GB/s per GPU",
        "generic-8x-next-gpu",
    ]


@pytest.mark.parametrize(
    ("peak", "bandwidth_bytes_per_s"), [({"bf16_tflop_per_s": 600}, 2e12), ({"fp32_tflop_per_s": 40}, 2e12)]
)
def test_a_gpu_of_which_only_peak_and_memory_are_known_can_be_planned(peak, bandwidth_bytes_per_s):
    cluster = read_cluster({"gpu": {"name": "rumour", "memory_gib": 100, **peak}, "gpus_per_node": 8, "num_nodes": 1})
    assert cluster.gpu.memory_bandwidth_bytes_per_s == pytest.approx(bandwidth_bytes_per_s)
    assert any("no memory_bandwidth_gb_per_s is given; 2,000 GB/s is assumed" in text for text in cluster.assumptions)


def test_a_gpu_based_on_another_keeps_what_is_not_said():
    cluster = read_cluster({"gpu": {"based_on": "h100-sxm", "name": "h100-64", "memory_gib": 63.5}, "num_gpus": 16})
    assert (cluster.gpu.id, cluster.gpu.name) == ("h100-sxm", "h100-64")
    assert cluster.gpu.memory_bytes == 63.5 * GIB
    assert cluster.gpu.peak_flop_per_s("fp8") == 1979e12
    assert cluster.num_nodes == 2
    assert cluster.price is not None
    assert cluster.price.usd_per_gpu_hour == 2.82


def test_the_example_file_describes_32_gpus(tmp_path):
    cluster = read_cluster(ROOT / "examples" / "cluster.toml")
    assert cluster.num_gpus == 32
    assert cluster.gpu.memory_bytes == 63.5 * GIB
    assert cluster.node.network.bandwidth_bytes_per_s == 25e9
    assert cluster.price is not None
    assert cluster.price.usd_per_gpu_hour == 2.15


def test_a_path_may_be_text_or_path_and_toml_or_json(tmp_path):
    toml, as_json = tmp_path / "c.toml", tmp_path / "c.JSON"
    toml.write_text('gpu = "h100-sxm"\nnum_gpus = 64\n', encoding="utf-8")
    as_json.write_text('{"gpu": "h100-sxm", "num_gpus": 64}', encoding="utf-8")
    expected = read_cluster("64xh100-sxm")
    assert read_cluster(str(toml)) == read_cluster(toml) == read_cluster(as_json) == expected
    assert read_cluster('{"gpu": "h100-sxm", "num_gpus": 64}') == expected


@pytest.mark.parametrize(
    ("fields", "code", "fix"),
    [
        ({}, "cluster-field", None),
        ({"node": "dgx-h100", "gpu": "h100-sxm"}, "cluster-field", None),
        (
            {"gpu": "h100-sxm", "num_gpus": 8, "num_nodes": 1},
            "cluster-field",
            "leave out num_gpus and say gpus_per_node",
        ),
        ({"gpu": "h100-sxm", "gpu_per_node": 8}, "cluster-field", "use gpus_per_node"),
        ({"gpu": "h100-sxm", "zzz": 1}, "cluster-field", "remove 'zzz'"),
        (
            {"gpu": "h100-sxm", "network_gbit_per_s_per_node": 400, "network_gb_per_s_per_gpu": 50},
            "cluster-field",
            "leave out network_gb_per_s_per_gpu",
        ),
        ({"gpu": {"name": "mine"}, "gpus_per_node": 8}, "cluster-field", None),
        ({"gpu": OWN_GPU}, "cluster-field", "add gpus_per_node = 8"),
        ({"gpu": OWN_GPU, "num_gpus": 8}, "cluster-field", "add gpus_per_node = 8"),
        ({"gpu": "h100-sxm", "memory_gib": "80"}, "cluster-value", None),
        ({"gpu": "h100-sxm", "memory_gib": True}, "cluster-value", None),
        ({"gpu": "h100-sxm", "memory_gib": math.nan}, "cluster-value", None),
        ({"gpu": "h100-sxm", "memory_gib": -1}, "cluster-value", None),
        ({"gpu": "h100-sxm", "usd_per_gpu_hour": math.inf}, "cluster-value", None),
        ({"gpu": ["h100-sxm"]}, "cluster-value", 'use "gpu": "h100-sxm"'),
        ({"node": 8}, "cluster-value", None),
        ({"node": ""}, "cluster-value", None),
        ({"gpu": "h100-sxm", "num_nodes": 0}, "cluster-size", None),
        ({"gpu": "h100-sxm", "num_nodes": 1.5}, "cluster-size", None),
        ({"gpu": "h100-sxm", "num_nodes": 10**400}, "cluster-size", None),
        ({"gpu": "h100-sxm", "num_nodes": 200_000}, "cluster-size", "use num_nodes=131072 or fewer"),
        ({"node": "dgx-h100", "gpus_per_node": 9}, "cluster-size", "use gpus_per_node=8"),
        ({"node": "dgx-h100", "num_nodes": 1, "missing_gpus": 1}, "cluster-size", "use gpus_per_node=7"),
        ({"node": "dgx-h100", "num_nodes": 2, "missing_gpus": 8}, "cluster-size", "use a smaller num_nodes"),
        ({"gpu": "h100-sxm", "num_gpus": 3, "gpus_per_node": 8}, "cluster-partial-node", "use 8xh100-sxm"),
        ({"gpu": "h100-sxm", "network": "nvlink-4"}, "cluster-network", None),
        ({"gpu": "h100-sxm", "network": "token-ring"}, "cluster-network", None),
        ({"gpu": "H100"}, "cluster-ambiguous-gpu", "use h100-sxm"),
        ({"gpu": "dgx-h100"}, "cluster-unknown", 'use "node": "dgx-h100" instead of "gpu"'),
        ({"node": "h100-sxm"}, "cluster-unknown", 'use "gpu": "h100-sxm" instead of "node"'),
    ],
)
def test_fields_that_cannot_be_used_are_refused(fields, code, fix):
    error = refusal(fields)
    assert error.code == code
    assert fix is None or error.fix == fix


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("absent.toml", None, "No such file"),
        ("broken.toml", "gpu = ", "not TOML"),
        ("broken.json", "{", "not JSON"),
        ("list.json", "[1]", "holds a list"),
        ("huge.toml", "#" * 1_000_001, "larger than"),
        ("latin.toml", b"gpu = '\xff'", "UTF-8"),
        ("cluster.ini", "gpu=h100", "ends in '.ini'"),
        ("deep.json", "[" * 100_000, "not JSON"),
    ],
)
def test_files_that_cannot_be_used_are_refused(tmp_path, name, content, reason):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    error = refusal(path)
    assert error.code == "cluster-file"
    assert reason in error.message


def test_a_directory_is_no_cluster_file(tmp_path):
    folder = tmp_path / "cluster.toml"
    folder.mkdir()
    assert refusal(folder).code == "cluster-file"


def test_the_canonical_json_of_a_file_rebuilds_the_same_cluster():
    cluster = read_cluster(ROOT / "examples" / "cluster.toml")
    assert read_cluster(json.loads(cluster.spec_json)) == cluster
    assert read_cluster(cluster.spec_json) == cluster

"""One line of text to a cluster: counts, names, spellings, and what is refused with which fix."""

import json

import pytest

from shardwise.catalog import read_cluster
from shardwise.errors import ClusterError
from shardwise.units import GIB


def refusal(source):
    with pytest.raises(ClusterError) as caught:
        read_cluster(source)
    return caught.value


@pytest.mark.parametrize(
    ("text", "num_nodes", "gpus_per_node", "gpu_id"),
    [
        ("64xh100-sxm", 8, 8, "h100-sxm"),
        ("64 x h100-sxm", 8, 8, "h100-sxm"),
        ("64×H100-SXM", 8, 8, "h100-sxm"),
        ("64 h100-sxm", 8, 8, "h100-sxm"),
        ("64*h100 sxm", 8, 8, "h100-sxm"),
        ("  64 X  h100_sxm ", 8, 8, "h100-sxm"),
        ("h100-sxm x 64", 8, 8, "h100-sxm"),
        ("h100-sxm:64", 8, 8, "h100-sxm"),
        ("1,024xh100-sxm", 128, 8, "h100-sxm"),
        ("1_024xh100-sxm", 128, 8, "h100-sxm"),
        ("1e3xh100-sxm", 125, 8, "h100-sxm"),
        ("2**10 x h100-sxm", 128, 8, "h100-sxm"),
        ("h100-sxm", 1, 1, "h100-sxm"),
        ("4xh100-sxm", 1, 4, "h100-sxm"),
        ("3x4xh100-sxm", 3, 4, "h100-sxm"),
        ("8 x dgx-h100", 8, 8, "h100-sxm"),
        ("dgx-h100", 1, 8, "h100-sxm"),
        ("DGX H100 x2", 2, 8, "h100-sxm"),
        ("2xdgx-h100", 2, 8, "h100-sxm"),
        ("2x4xdgx-h100", 2, 4, "h100-sxm"),
        ("hgx-h200", 1, 8, "h200-sxm"),
        ("p5.48xlarge", 1, 8, "h100-sxm"),
        ("8xp5.48xlarge", 8, 8, "h100-sxm"),
        ("aws-p5.48xlarge", 1, 8, "h100-sxm"),
        ("a3-megagpu-8g", 1, 8, "h100-sxm"),
        ("2 x Standard_ND96isr_H100_v5", 2, 8, "h100-sxm"),
        ("BM.GPU.MI300X.8", 1, 8, "mi300x"),
        ("gpu_8x_h100_sxm5", 1, 8, "h100-sxm"),
        ("16xgb200", 4, 4, "gb200"),
        ("2xgb200", 1, 2, "gb200"),
        ("gb200-nvl72", 18, 4, "gb200"),
        ("2 x GB300 NVL72", 36, 4, "gb300"),
        ("8xmi250x", 1, 8, "mi250x"),
        ("4090", 1, 1, "rtx-4090"),
        ("4090 x 2", 1, 2, "rtx-4090"),
        ("8x4090", 1, 8, "rtx-4090"),
        ("b200", 1, 1, "b200-sxm"),
        ("8xA800", 1, 8, "a800-sxm-80"),
        ("8x A100 80GB PCIe", 1, 8, "a100-pcie-80"),
        ("NVIDIA H100 80GB HBM3", 1, 1, "h100-sxm"),
        ("NVIDIA A100-SXM4-80GB", 1, 1, "a100-sxm-80"),
        ("NVIDIA A100-SXM4-40GB", 1, 1, "a100-sxm-40"),
        ("NVIDIA H100 PCIe", 1, 1, "h100-pcie"),
        ("NVIDIA H100 NVL", 1, 1, "h100-nvl"),
        ("NVIDIA GeForce RTX 4090", 1, 1, "rtx-4090"),
        ("NVIDIA GH200 480GB", 1, 1, "gh200-96"),
        ("Tesla V100-SXM2-32GB", 1, 1, "v100-sxm2-32"),
        ("Tesla T4", 1, 1, "t4"),
        ("AMD Instinct MI300X", 1, 1, "mi300x"),
        ("16xtpu-v5e", 2, 8, "tpu-v5e"),
        ("2xcpu", 1, 2, "cpu"),
        ("cpu", 1, 1, "cpu"),
    ],
)
def test_text_names_a_cluster(text, num_nodes, gpus_per_node, gpu_id):
    cluster = read_cluster(text)
    assert (cluster.num_nodes, cluster.node.gpus_per_node, cluster.gpu.id) == (num_nodes, gpus_per_node, gpu_id)
    assert cluster.num_gpus == num_nodes * gpus_per_node


def test_the_usual_server_of_a_part_is_an_assumption_that_is_stated():
    assert read_cluster("64xh100-sxm").assumptions == (
        "h100-sxm: its usual server dgx-h100 is assumed, 8 GPUs over NVLink",
        "ib-ndr between servers is assumed, 50 GB/s per GPU",
    )


def test_a_named_server_needs_no_assumption():
    assert read_cluster("8xdgx-h100").assumptions == ()


def test_a_smaller_server_takes_its_share_of_the_host():
    node = read_cluster("4xh100-sxm").node
    assert node.id == "dgx-h100-4gpu"
    assert node.host_memory_bytes == 1024 * GIB
    assert node.nvme_bytes == 15_350_000_000_000
    assert node.num_nics == 4
    assert node.scale_up_domain_gpus == 4
    assert node.network.bandwidth_bytes_per_s == 50e9
    assert node.scale_up_bandwidth_bytes_per_s == 450e9


def test_the_one_nic_of_a_smaller_server_is_not_cut():
    """A 25 Gb/s port is shared by two GPUs instead of eight."""
    network = read_cluster("2x2x4090").node.network
    assert network.bandwidth_bytes_per_s == pytest.approx(25e9 / 8 / 2, rel=1e-3)


def test_a_pod_keeps_its_domain_over_many_servers():
    assert read_cluster("16xtpu-v5e").node.scale_up_domain_gpus == 256
    assert read_cluster("16xgb200").node.scale_up_domain_gpus == 72


def test_bridged_cards_stay_pairs():
    node = read_cluster("8xh100-nvl").node
    assert (node.scale_up, node.scale_up_domain_gpus) == ("NVLink bridge", 2)


def test_cards_without_links_meet_over_pcie():
    node = read_cluster("8xh100-pcie").node
    assert (node.scale_up, node.scale_up_domain_gpus, node.scale_up_bandwidth_bytes_per_s) == ("PCIe", 8, 63e9)


def test_cpu_figures_are_assumed_and_said_to_be():
    cluster = read_cluster("2xcpu")
    assert cluster.gpu.memory_bytes == 4 * GIB
    assert cluster.gpu.memory_is_derived
    assert cluster.price is None
    assert cluster.assumptions == (
        "cpu: 4.00 GiB, 100 GFLOP/s fp32 and 1 GB/s of gloo over loopback per process are assumed; nothing is read "
        "from this machine",
    )


@pytest.mark.parametrize(
    ("text", "candidates", "fix"),
    [
        ("A100", ["a100-pcie-40", "a100-sxm-40", "a100-pcie-80", "a100-sxm-80"], "use a100-sxm-80"),
        ("80 a100", ["a100-pcie-40", "a100-sxm-40", "a100-pcie-80", "a100-sxm-80"], "use 80xa100-sxm-80"),
        ("8 x a100-80gb", ["a100-pcie-80", "a100-sxm-80"], "use 8xa100-sxm-80"),
        ("MI300", ["mi300x", "mi325x"], "use mi300x"),
        ("4xGH200", ["gh200-96", "gh200-141"], "use 4xgh200-141"),
        ("v100", ["v100-sxm2-16", "v100-sxm2-32"], "use v100-sxm2-32"),
        ("2x8xa100", ["a100-pcie-40", "a100-sxm-40", "a100-pcie-80", "a100-sxm-80"], "use 2x8xa100-sxm-80"),
        ("tpu-v5", ["tpu-v5e", "tpu-v5p"], "use tpu-v5e"),
    ],
)
def test_a_name_that_fits_several_parts_asks_back_with_all_of_them(text, candidates, fix):
    error = refusal(text)
    assert error.code == "cluster-ambiguous-gpu"
    assert [line.split(" (")[0] for line in error.message.partition(": ")[2].split("; ")] == candidates
    assert error.fix == fix


def test_the_candidates_say_how_they_differ():
    assert "a100-sxm-80 (79.20 GiB, 2039 GB/s, SXM4)" in refusal("A100").message
    assert "a100-pcie-80 (79.20 GiB, 1935 GB/s, PCIe)" in refusal("A100").message


@pytest.mark.parametrize(
    ("text", "spelled_out", "others"),
    [
        ("8xh100", "8xh100-sxm", "h100-pcie, h100-96-hbm2e, h100-nvl"),
        ("2x8xH100", "2x8xh100-sxm", "h100-pcie, h100-96-hbm2e, h100-nvl"),
        ("nvidia h200", "h200-sxm", "h200-nvl"),
    ],
)
def test_a_name_of_one_module_and_of_cards_is_taken_for_the_module_and_says_so(text, spelled_out, others):
    short, long = read_cluster(text), read_cluster(spelled_out)
    assert (short.node, short.num_nodes, short.spec_json) == (long.node, long.num_nodes, long.spec_json)
    assert short.assumptions[0].endswith(f"is taken for {long.gpu.id}; other parts are {others}")
    assert short.assumptions[1:] == long.assumptions


def test_a_name_that_fits_several_servers_asks_back():
    error = refusal("2xdgx-a100")
    assert error.code == "cluster-ambiguous-node"
    assert error.fix == "use 2xdgx-a100-640"
    assert "dgx-a100-320 (8 x a100-sxm-40)" in error.message


@pytest.mark.parametrize(
    ("text", "fix"),
    [
        ("64xh100-sxmm", "use 64xh100-sxm"),
        ("dgx-h1000", "use dgx-h100"),
        ("p5.48xlage", "use aws-p5.48xlarge"),
        ("l40", "use l40s"),
    ],
)
def test_an_unknown_name_lists_close_ones(text, fix):
    error = refusal(text)
    assert error.code == "cluster-unknown"
    assert error.fix == fix


@pytest.mark.parametrize("text", ["foo", "8xquantum", "nvidia", "sxm", "80gb", "8", "x", "8x", "ß", "١xh100-sxm"])
def test_what_names_nothing_is_unknown(text):
    assert refusal(text).code == "cluster-unknown"


@pytest.mark.parametrize(
    ("text", "num_nodes", "there"),
    [
        ("63xh100-sxm", 8, 7),
        ("28xh100-sxm", 4, 4),
        ("20xh100-sxm", 3, 4),
        ("5xgb200", 2, 1),
        ("1001xa100-sxm-80", 126, 1),
    ],
)
def test_a_count_that_does_not_fill_servers_leaves_the_last_one_incomplete(text, num_nodes, there):
    """A dead GPU is every night's case: seven whole servers and one of seven."""
    cluster = read_cluster(text)
    whole, per_node = num_nodes - 1, cluster.node.gpus_per_node
    assert cluster.num_gpus == int(text.split("x")[0])
    assert cluster.num_nodes == num_nodes
    assert f"{whole} whole servers of {per_node} GPUs and one with {there} of them" in cluster.assumptions
    again = read_cluster(json.loads(cluster.spec_json))
    assert (again.num_gpus, again.num_nodes, again.assumptions) == (cluster.num_gpus, num_nodes, cluster.assumptions)


@pytest.mark.parametrize(
    "text",
    [
        "0xh100-sxm",
        "-4xh100-sxm",
        "1e9xh100-sxm",
        "10**9xh100-sxm",
        "1000000000 x h100-sxm",
        "nanxh100-sxm",
        "infxh100-sxm",
        "1.5xh100-sxm",
        "1e-3xh100-sxm",
        "99**99xh100-sxm",
        "1048577xdgx-h100",
        "200000xdgx-h100",
        "2x0xh100-sxm",
        "2x9xdgx-h100",
        "2x2xcpu",
    ],
)
def test_absurd_sizes_are_refused(text):
    error = refusal(text)
    assert error.code == "cluster-size"
    assert error.fix


def test_the_largest_cluster_is_allowed():
    assert read_cluster("1048576xh100-sxm").num_gpus == 1_048_576


@pytest.mark.parametrize("text", ["", "   ", "x" * 201, "h100\x00sxm", "8xh100-sxm" * 1000])
def test_what_is_no_line_of_text_is_refused(text):
    assert refusal(text).code == "cluster-text"


@pytest.mark.parametrize("source", [8, None, 1.5, ["64xh100-sxm"]])
def test_what_is_no_text_at_all_is_refused(source):
    assert refusal(source).code == "cluster-text"


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("64xh100-sxm", {"gpu": "h100-sxm", "gpus_per_node": 8, "num_nodes": 8}),
        ("8 x DGX-H100", {"node": "dgx-h100", "num_nodes": 8}),
        ("p5.48xlarge", {"node": "aws-p5.48xlarge", "num_nodes": 1}),
        ("gb200-nvl72", {"node": "gb200-nvl72-tray", "num_nodes": 18}),
        ("3xcpu", {"gpu": "cpu", "gpus_per_node": 3, "num_nodes": 1}),
    ],
)
def test_the_canonical_json_uses_ids(text, fields):
    assert json.loads(read_cluster(text).spec_json) == fields


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("8xh1000", "8xh100-sxm"), ("8xmi30x", "8xmi300x"), ("4xrtx-409", "4xrtx-4090"), ("2xdgx-h10", "2xdgx-h100")],
)
def test_a_misspelt_name_is_taken_for_its_nearest_neighbour(typed, meant):
    assert refusal(typed).fix == f"use {meant}"


def test_a_plain_host_has_twice_the_memory_of_its_gpus():
    """A workstation with two RTX 3090: 48 GB of GPU memory, 96 GB of its own (Puget Systems' first rule of thumb)."""
    cluster = read_cluster("2xrtx-3090")
    assert cluster.node.host_memory_bytes == 2 * 2 * cluster.gpu.memory_bytes
    assert any("twice that of its GPUs" in text for text in cluster.assumptions)
    own = read_cluster({"gpu": "rtx-3090", "gpus_per_node": 2, "num_nodes": 1, "host_memory_gib": 256})
    assert own.node.host_memory_bytes == 256 * GIB

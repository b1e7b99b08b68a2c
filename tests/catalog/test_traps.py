"""The mistakes that hardware tables are full of, each pinned to the right figure."""

import pytest

from catalog.tables import row, rows
from shardwise.catalog import load_gpu, load_gpus, load_node, load_prices, read_cluster
from shardwise.catalog.hardware.readings import load_collective_readings
from shardwise.units import GIB

NVIDIA_WITH_FP8 = [gpu for gpu in load_gpus() if gpu.vendor == "NVIDIA" and gpu.peak_flop_per_s("fp8")]


@pytest.mark.parametrize("gpu", NVIDIA_WITH_FP8, ids=lambda gpu: gpu.id)
def test_fp8_is_twice_bf16_on_nvidia_so_neither_is_sparse(gpu):
    assert gpu.peak_flop_per_s("fp8") / gpu.peak_flop_per_s("bf16") == pytest.approx(2, rel=0.02)


@pytest.mark.parametrize(
    "gpu_id", ["a100-sxm-80", "a100-pcie-40", "h100-sxm", "h100-pcie", "h200-sxm", "b200-sxm", "gb200"]
)
def test_tf32_is_half_of_bf16_on_datacentre_parts(gpu_id):
    gpu = load_gpu(gpu_id)
    assert gpu.peak_flop_per_s("bf16") / gpu.peak_flop_per_s("tf32") == pytest.approx(2, rel=0.001)


@pytest.mark.parametrize(
    ("gpu_id", "dtype", "dense_tflop_per_s"),
    [
        ("h100-sxm", "bf16", 989.5),
        ("h100-sxm", "fp8", 1979),
        ("l40s", "fp16", 362),
        ("l40s", "fp8", 733),
        ("rtx-5090", "bf16", 209.5),
        ("rtx-pro-6000-bw", "fp4", 2000),
        ("rtx-a6000", "bf16", 154.85),
        ("a100-sxm-80", "bf16", 312),
        ("l4", "bf16", 121),
        ("gaudi3", "bf16", 1677),
    ],
)
def test_peaks_are_dense(gpu_id, dtype, dense_tflop_per_s):
    """Data sheets print 1979, 3958, 733, 838, 4000, 309.7, 624 and 242 for some of these, with sparsity."""
    assert load_gpu(gpu_id).peak_flop_per_s(dtype) == pytest.approx(dense_tflop_per_s * 1e12)


def test_a10g_is_not_a10():
    assert load_gpu("a10g").peak_flop_per_s("bf16") == 70e12
    assert load_gpu("a10").peak_flop_per_s("bf16") == 125e12
    measured = next(line for line in rows("achieved") if (line["kind"], line["accelerator_id"]) == ("gemm", "a10g"))
    assert float(measured["value"]) == 66.6
    assert load_gpu("a10g").peak_flop_per_s("bf16") > 66.6e12


@pytest.mark.parametrize(("gpu_id", "tflop_per_s"), [("rtx-4090", 165.2), ("rtx-3090", 71.2)])
def test_geforce_halves_the_tensor_rate_with_fp32_accumulation(gpu_id, tflop_per_s):
    assert load_gpu(gpu_id).peak_flop_per_s("bf16") == pytest.approx(tflop_per_s * 1e12)


@pytest.mark.parametrize(
    ("gpu_id", "torch_total_gib"),
    [
        ("t4", 14.56),
        ("a10g", 22.06),
        ("l4", 22.03),
        ("rtx-3090", 23.68),
        ("rtx-4090", 23.52),
        ("rtx-5090", 31.36),
        ("l40s", 44.4),
        ("rtx-a6000", 47.54),
        ("a100-sxm-40", 39.5),
        ("a100-sxm-80", 79.2),
        ("h100-sxm", 79.18),
        ("rtx-pro-6000-bw", 94.97),
        ("h200-sxm", 139.8),
        ("b200-sxm", 178.35),
        ("v100-sxm2-16", 15.77),
        ("gb200", 184.31),
        ("gb300", 276.62),
        ("b300-sxm", 267.69),
        ("mi300x", 191.98),
        ("mi325x", 255.98),
        ("mi355x", 287.98),
    ],
)
def test_usable_memory_is_what_torch_prints(gpu_id, torch_total_gib):
    gpu = load_gpu(gpu_id)
    assert gpu.memory_bytes == round(torch_total_gib * GIB)
    assert not gpu.memory_is_derived


@pytest.mark.parametrize("gpu_id", ["a800-sxm-80", "h800-sxm", "gaudi2", "gaudi3", "a10", "gh200-141", "titan-rtx"])
def test_memory_without_a_source_is_flagged_as_derived(gpu_id):
    gpu = load_gpu(gpu_id)
    assert gpu.memory_is_derived
    assert any("is derived" in text for text in read_cluster(gpu_id).assumptions)


@pytest.mark.parametrize(
    ("gpu_id", "one_way_gb_per_s"),
    [
        ("v100-sxm2-32", 150),
        ("a100-sxm-80", 300),
        ("h100-sxm", 450),
        ("h200-sxm", 450),
        ("b200-sxm", 900),
        ("a800-sxm-80", 200),
        ("h800-sxm", 200),
    ],
)
def test_nvlink_is_one_way(gpu_id, one_way_gb_per_s):
    assert load_gpu(gpu_id).scale_up_bandwidth_bytes_per_s == one_way_gb_per_s * 1e9


def test_duplex_is_twice_one_way():
    """networks.csv keeps one direction; NVLink 4 is sold as 900."""
    assert float(row("networks", "nvlink-4")["link_gb_per_s"]) == 450


def test_a_pair_on_a_mesh_gets_one_link_and_eight_gpus_get_all():
    """Measured busbw: 47.7 GB/s for 2 GPUs, 312.9 for 8: both about 0.7 of the line rates below."""
    node = read_cluster("8xmi300x").node
    assert node.scale_up_bandwidth_of(2) == 64e9
    assert node.scale_up_bandwidth_of(4) == 192e9
    assert node.scale_up_bandwidth_of(8) == 448e9
    measured = {
        reading.num_gpus: reading.bus_bandwidth_bytes_per_s
        for reading in load_collective_readings()
        if reading.gpu_id == "mi300x" and reading.operation == "all_reduce"
    }
    assert measured[2] / 1e9 == pytest.approx(47.671, abs=0.1)
    assert measured[8] / 1e9 == pytest.approx(312.912, abs=0.1)


def test_a_pair_behind_a_switch_gets_everything():
    assert read_cluster("8xh100-sxm").node.scale_up_bandwidth_of(2) == 450e9


def h200_plateau(operation, implementation):
    return next(
        reading.bus_bandwidth_bytes_per_s / 1e9
        for reading in load_collective_readings()
        if (reading.gpu_id, reading.num_gpus, reading.num_nodes) == ("h200-sxm", 8, 1)
        and (reading.operation, reading.implementation) == (operation, implementation)
        and reading.message_bytes == 17179869184
    )


def test_reduction_in_the_switch_helps_all_reduce_only():
    assert h200_plateau("all_reduce", "NCCL NVLS") == pytest.approx(480, abs=3)
    assert h200_plateau("all_reduce", "NCCL NVLS off") == pytest.approx(367, abs=1)
    assert h200_plateau("all_gather", "NCCL") == pytest.approx(361, abs=1)
    assert h200_plateau("reduce_scatter", "NCCL") == pytest.approx(363, abs=1)


def test_the_busbw_factor_of_all_reduce_is_kept_as_a_formula():
    factors = {line["scope"]: line["value"] for line in rows("nccl_constants") if line["group"] == "busbw"}
    assert factors["all_reduce"] == "2(n-1)/n"
    assert factors["all_gather"] == "(n-1)/n"


@pytest.mark.parametrize(("node_id", "gbit_per_s"), [("gcp-a3-highgpu-8g", 800), ("gcp-a3-megagpu-8g", 1600)])
def test_the_host_nic_is_not_part_of_the_fabric(node_id, gbit_per_s):
    """Marketing says 1000 and 1800."""
    node = load_node(node_id)
    assert node.network.bandwidth_bytes_per_s * 8 * node.gpus_per_node == gbit_per_s * 1e9


@pytest.mark.parametrize(
    "node_id", ["gb200-nvl72-tray", "gb300-nvl72-tray", "oci-bm.gpu.gb200.4", "gcp-a4x-highgpu-4g"]
)
def test_one_nvlink_domain_spans_eighteen_trays(node_id):
    node = load_node(node_id)
    assert node.gpus_per_node == 4
    assert node.scale_up_domain_gpus == 72


def test_all_reduce_over_racks_is_far_below_one_rack():
    """839 GB/s inside one NVL72 rack and 406 across twenty at the largest message."""
    peaks = {
        num_gpus: max(
            reading.bus_bandwidth_bytes_per_s / 1e9
            for reading in load_collective_readings()
            if reading.gpu_id == "gb200" and reading.num_gpus == num_gpus
        )
        for num_gpus in (72, 1440)
    }
    assert peaks == {72: pytest.approx(839, abs=1), 1440: pytest.approx(406, abs=1)}


@pytest.mark.parametrize(
    ("sku", "usd_per_node_hour", "stale"),
    [("p5.48xlarge", 55.04, 98.32), ("p4d.24xlarge", 21.957642, 32.77)],
)
def test_aws_prices_are_those_after_the_cut(sku, usd_per_node_hour, stale):
    prices = [line for line in rows("prices") if line["sku"] == sku and line["kind"] == "on_demand"]
    assert min(float(line["usd_per_hour"]) for line in prices) == usd_per_node_hour
    assert all(float(line["usd_per_hour"]) < stale for line in prices)


def test_spot_is_not_sold_as_on_demand():
    """One public index lists Azure spot (19.66 per ND H100 node, 2.46 per GPU) as on-demand."""
    azure = [price for price in load_prices() if price.provider == "Azure" and price.gpu_id == "h100-sxm"]
    assert [price.usd_per_gpu_hour for price in azure] == [12.29]


def test_the_h100_of_the_torchtitan_tables_is_a_part_of_its_own():
    ours, sxm = load_gpu("h100-96-hbm2e"), load_gpu("h100-sxm")
    assert ours.memory_bytes == 95 * GIB
    assert ours.memory_bandwidth_bytes_per_s == 2.4e12
    assert ours.tdp_w == 500
    assert ours.peak_flop_per_s("bf16") == 800e12  # arXiv:2411.01783, appendix A; torchtitan divides by 989e12
    assert sxm.memory_bandwidth_bytes_per_s == 3.35e12
    assert read_cluster("8xh100-96-hbm2e").node.network.bandwidth_bytes_per_s == 50e9


def test_nccl_link_constants_are_below_the_line_rate():
    """SM90: 18 links x 20.6 = 370.8 GB/s against 450 on the wire."""
    per_link = {
        line["name"]: float(line["value"]) for line in rows("nccl_constants") if line["group"] == "linkBandwidth"
    }
    assert per_link["SM90_NVLINK_BW"] == 20.6
    assert per_link["SM80_NVLINK_BW"] == 20
    assert per_link["SM100_NVLINK_BW"] == 40.1
    assert load_gpu("h100-sxm").scale_up_bandwidth_bytes_per_s > 18 * 20.6e9
    assert load_gpu("a100-sxm-80").scale_up_bandwidth_bytes_per_s > 12 * 20e9


def test_modelling_assumptions_of_other_planners_are_not_data():
    assert "CALC" not in {line["key"] for line in rows("sources")}


def test_two_devices_of_one_part_are_planned_one_by_one():
    gpu = load_gpu("mi250x")
    assert gpu.memory_bytes == round(63.98 * GIB)
    assert gpu.memory_bandwidth_bytes_per_s == 1638.5e9
    assert gpu.peak_flop_per_s("bf16") == 191.5e12
    assert gpu.sm_count == 110

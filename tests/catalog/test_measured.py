"""Measurements and fits as records: a few published figures, units, and fits that reproduce their own sweep."""

import pytest

from catalog.tables import rows
from shardwise.catalog.hardware.facts import load_sources
from shardwise.catalog.hardware.readings import load_collective_readings


def achieved(kind):
    return [line for line in rows("achieved") if line["kind"] == kind]


def rate_tflop_per_s(fit, x):
    """The fitted rate at ``x``, a sequence length or K: ``limit * x / (x + half)``."""
    return float(fit["limit_tflop_per_s"]) * x / (x + float(fit["x_half"]))


def test_all_rows_are_loaded():
    assert len(load_collective_readings()) == len(achieved("collective")) > 10
    assert len(load_sources()) == len(rows("sources")) > 10


@pytest.mark.parametrize(
    ("gpu_id", "num_nodes", "latency_us"), [("h100-sxm", 1, 12.9), ("h100-sxm", 2, 69.1), ("a100-sxm-80", 2, 164.3)]
)
def test_an_eight_byte_all_reduce_is_pure_latency(gpu_id, num_nodes, latency_us):
    durations = [
        reading.duration_s
        for reading in load_collective_readings()
        if (reading.gpu_id, reading.num_nodes, reading.message_bytes) == (gpu_id, num_nodes, 8)
    ]
    assert durations == [pytest.approx(latency_us * 1e-6)]


def test_bus_bandwidth_and_time_of_a_sweep_agree():
    """busbw = 2 (n - 1) / n * bytes / time for an all-reduce."""
    sweep = [
        reading
        for reading in load_collective_readings()
        if reading.operation == "all_reduce" and reading.duration_s and reading.bus_bandwidth_bytes_per_s
    ]
    assert len(sweep) > 100
    for reading in sweep:
        expected = 2 * (reading.num_gpus - 1) / reading.num_gpus * reading.message_bytes / reading.duration_s
        assert reading.bus_bandwidth_bytes_per_s == pytest.approx(expected, rel=0.02), reading


def test_the_gh200_ceiling_belongs_to_the_141_gb_part():
    """The table it comes from names the 900 W, 141 GB version."""
    ceilings = {
        line["accelerator_id"]: float(line["value"])
        for line in achieved("gemm")
        if line["implementation"].startswith("MAMF")
    }
    assert ceilings["gh200-141"] in (828.6, 1535)
    assert "gh200-96" not in ceilings


def test_the_nvlink_4_copy_was_measured_on_h200():
    copies = [line for line in achieved("p2p") if (line["value"], line["unit"]) == ("396.4", "GB/s")]
    assert [line["accelerator_id"] for line in copies] == ["h200-sxm"]


def test_an_attention_fit_reproduces_its_sweep_within_its_stated_error():
    columns = ("accelerator_id", "implementation", "dtype", "head_dim", "causal", "pass", "source")
    for fit in rows("kernel_fits"):
        if fit["kind"] != "attention":
            continue
        points = [line for line in achieved("attention") if all(line[column] == fit[column] for column in columns)]
        assert points, fit
        errors = [abs(rate_tflop_per_s(fit, int(line["seq_len"])) / float(line["value"]) - 1) for line in points]
        assert max(errors) == pytest.approx(float(fit["max_abs_rel_err"]), abs=0.012), fit


def test_a_gemm_fit_at_k_1024_loses_a_fifth_of_the_rate():
    fit = next(fit for fit in rows("kernel_fits") if fit["kind"] == "gemm" and fit["dtype"] == "fp16")
    assert rate_tflop_per_s(fit, 1024) == pytest.approx(625, abs=5)
    assert rate_tflop_per_s(fit, 1024) / float(fit["limit_tflop_per_s"]) == pytest.approx(0.8, abs=0.005)


def test_the_tree_correction_table_covers_64_bytes_to_512_mib_for_each_protocol():
    table = [line for line in rows("nccl_constants") if line["group"] == "treeCorrection"]
    for protocol in ("LL", "LL128", "Simple"):
        sizes = [int(line["message_bytes"]) for line in table if line["protocol"] == protocol]
        assert sizes == [64 * 2**i for i in range(24)]


def test_llama_3_failed_once_in_three_hours():
    rate = next(line for line in rows("reliability") if line["metric"] == "unexpected interruptions per node-day")
    assert float(rate["value"]) == pytest.approx(419 / (54 * 2048), rel=1e-3)


def test_published_training_costs():
    facts = {line["what"]: line for line in rows("cost_facts")}
    assert float(facts["DeepSeek-V3 full training"]["gpu_hours"]) == 2_788_000
    assert float(facts["DeepSeek-V3 full training"]["total_usd"]) == 5_576_000

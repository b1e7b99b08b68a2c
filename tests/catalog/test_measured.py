"""Measurements and fits as records: a few published figures, units, and fits that reproduce their own sweep."""

import pytest

from catalog.tables import rows
from shardwise.catalog.hardware.facts import load_cost_facts, load_reliability, load_sources
from shardwise.catalog.hardware.fits import load_collective_fits, load_kernel_fits
from shardwise.catalog.hardware.nccl_constants import load_nccl_constants
from shardwise.catalog.hardware.readings import (
    load_attention_readings,
    load_collective_readings,
    load_copy_readings,
    load_gemm_readings,
)

READINGS = {
    "collective": load_collective_readings,
    "gemm": load_gemm_readings,
    "attention": load_attention_readings,
}
OTHERS = {
    "comm_fits": load_collective_fits,
    "kernel_fits": load_kernel_fits,
    "nccl_constants": load_nccl_constants,
    "reliability": load_reliability,
    "cost_facts": load_cost_facts,
    "sources": load_sources,
}


def test_all_rows_are_loaded():
    achieved = [line["kind"] for line in rows("achieved")]
    assert {kind: len(load()) for kind, load in READINGS.items()} == {kind: achieved.count(kind) for kind in READINGS}
    assert len(load_copy_readings()) == sum(kind not in READINGS for kind in achieved)
    assert {name: len(load()) for name, load in OTHERS.items()} == {name: len(rows(name)) for name in OTHERS}
    assert min(len(load()) for load in (*READINGS.values(), *OTHERS.values(), load_copy_readings)) > 10


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
    ceilings = {r.gpu_id: r.achieved_flop_per_s for r in load_gemm_readings() if r.implementation.startswith("MAMF")}
    assert ceilings["gh200-141"] in (828.6e12, 1535e12)
    assert "gh200-96" not in ceilings


def test_the_nvlink_4_copy_was_measured_on_h200():
    copies = [r for r in load_copy_readings() if r.bandwidth_bytes_per_s == pytest.approx(396.4e9)]
    assert [reading.gpu_id for reading in copies] == ["h200-sxm"]


def test_an_attention_fit_reproduces_its_sweep_within_its_stated_error():
    for fit in load_kernel_fits():
        if fit.kind != "attention":
            continue
        key = (fit.gpu_id, fit.implementation, fit.dtype, fit.head_dim, fit.is_causal, fit.direction)
        points = [
            r
            for r in load_attention_readings()
            if (r.gpu_id, r.implementation, r.dtype, r.head_dim, r.is_causal, r.direction) == key
            and r.source == fit.source
        ]
        assert points, fit
        errors = [abs(fit.flop_per_s_at(r.seq_len) / r.achieved_flop_per_s - 1) for r in points]
        assert max(errors) == pytest.approx(fit.max_relative_error_fraction, abs=0.012), fit


def test_a_gemm_fit_at_k_1024_loses_a_fifth_of_the_rate():
    fit = next(fit for fit in load_kernel_fits() if fit.kind == "gemm" and fit.dtype == "fp16")
    assert fit.flop_per_s_at(1024) / 1e12 == pytest.approx(625, abs=5)
    assert fit.flop_per_s_at(1024) / fit.limit_flop_per_s == pytest.approx(0.8, abs=0.005)


def test_formulas_are_text_and_constants_are_numbers():
    by_name = {(c.name, c.algorithm, c.protocol, c.scope): c for c in load_nccl_constants()}
    assert by_name["hwLatency", "Ring", "Simple", "NET"].value == 14.0
    assert by_name["time", "any", "any", "any"].value is None
    assert by_name["time", "any", "any", "any"].text == "latency x latCount + bytes/(1000 x bw)"


def test_the_tree_correction_table_covers_64_bytes_to_512_mib_for_each_protocol():
    table = [c for c in load_nccl_constants() if c.group == "treeCorrection"]
    for protocol in ("LL", "LL128", "Simple"):
        sizes = [c.message_bytes for c in table if c.protocol == protocol]
        assert sizes == [64 * 2**i for i in range(24)]


def test_llama_3_failed_once_in_three_hours():
    rate = next(f for f in load_reliability() if f.metric == "unexpected interruptions per node-day")
    assert rate.value == pytest.approx(419 / (54 * 2048), rel=1e-3)


def test_published_training_costs():
    facts = {fact.what: fact for fact in load_cost_facts()}
    assert facts["DeepSeek-V3 full training"].gpu_hours == 2_788_000
    assert facts["DeepSeek-V3 full training"].total_usd == 5_576_000

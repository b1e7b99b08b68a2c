"""Goodput, cost, energy and offload against published runs."""

import numpy as np
import pytest

from shardwise.formulas import goodput, offload_time, run_cost

LLAMA_405B_HOURS = 30.84e6


def test_llama_3_mean_time_between_failures():
    """arXiv:2407.21783 section 3.3.4: 419 unexpected interruptions in 54 days on 16,384 GPUs."""
    mtbf_s = goodput.job_mtbf_s(num_nodes=2048, failures_per_node_day=419 / (54 * 2048))
    assert mtbf_s / 3600 == pytest.approx(3.09, abs=0.005)
    assert mtbf_s / 3600 * 16_384 == pytest.approx(50_700, rel=1e-3)


def test_exact_goodput_agrees_with_a_simulation():
    """Two roads: renewal simulation of segments that fail at exponential times."""
    mtbf_s, interval_s, blocking_s, restart_s = 11_000.0, 1900.0, 170.0, 430.0
    rng = np.random.default_rng(7)
    useful = wall = 0.0
    for _ in range(40_000):
        failure_s = rng.exponential(mtbf_s)
        if failure_s >= interval_s + blocking_s:
            useful += interval_s
            wall += interval_s + blocking_s
            continue
        wall += failure_s
        down_s = rng.exponential(mtbf_s)
        while down_s < restart_s:
            wall += down_s
            down_s = rng.exponential(mtbf_s)
        wall += restart_s
    exact = goodput.exponential_goodput(
        interval_s=interval_s, blocking_s=blocking_s, restart_s=restart_s, mtbf_s=mtbf_s
    )
    assert useful / wall == pytest.approx(exact, abs=0.01)


def test_daly_interval_is_near_the_true_optimum():
    run = {"blocking_s": 300.0, "restart_s": 600.0, "mtbf_s": 3.09 * 3600}
    intervals = np.linspace(200, 9000, 2000)
    values = [goodput.exponential_goodput(interval_s=float(tau), **run) for tau in intervals]
    best = intervals[int(np.argmax(values))]
    assert goodput.daly_interval_s(blocking_s=300.0, mtbf_s=3.09 * 3600) == pytest.approx(best, rel=0.01)


def test_hopeless_checkpoints_are_taken_once_per_failure():
    assert goodput.daly_interval_s(blocking_s=100.0, mtbf_s=40.0) == 40.0


def test_fewer_failures_never_hurt():
    values = [
        goodput.exponential_goodput(interval_s=900, blocking_s=30, restart_s=600, mtbf_s=hours * 3600)
        for hours in (1, 3, 11, 101)
    ]
    assert values == sorted(values)
    assert all(0 < value < 1 for value in values)


def test_llama_405b_hours_at_the_best_step_rate_and_as_billed():
    """400 TFLOP/s (table 4) would be 26.4M hours; the model card says 30.84M: a factor 0.855."""
    best = run_cost.gpu_hours(total_flop=3.80e25, peak_flop_per_s=400e12, mfu_fraction=1.0)
    assert best / 1e6 == pytest.approx(26.4, abs=0.05)
    assert best / LLAMA_405B_HOURS == pytest.approx(0.855, abs=0.001)
    billed = run_cost.gpu_hours(total_flop=3.80e25, peak_flop_per_s=400e12, mfu_fraction=1.0, goodput_fraction=0.8557)
    assert billed / 1e6 == pytest.approx(30.84, abs=0.01)


@pytest.mark.parametrize(("usd_per_gpu_hour", "million_usd"), [(2.0, 61.68), (3.5, 107.94), (3.24, 99.92)])
def test_llama_405b_dollars_depend_on_the_price(usd_per_gpu_hour, million_usd):
    usd = run_cost.run_usd(gpu_hours=LLAMA_405B_HOURS, usd_per_gpu_hour=usd_per_gpu_hour)
    assert usd / 1e6 == pytest.approx(million_usd, abs=0.005)


def test_deepseek_v3():
    """arXiv:2412.19437 table 1: 2.788M H800 hours at $2 are $5.576M."""
    assert run_cost.run_usd(gpu_hours=2.788e6, usd_per_gpu_hour=2.0) == 5.576e6
    assert run_cost.run_usd(gpu_hours=2.788e6, usd_per_gpu_hour=3.5) == pytest.approx(9.76e6, abs=0.005e6)


def test_energy_of_llama_405b_and_of_llama_2():
    """700 W: 21.6 GWh. Llama 2 70B card: 1,720,320 hours at 400 W; 291.42 t at the card's 0.423 kg/kWh."""
    assert run_cost.energy_mwh(gpu_hours=LLAMA_405B_HOURS, gpu_power_w=700) == pytest.approx(21_588, abs=1)
    assert pytest.approx(0.414, abs=0.0005) == 8930 / 21_588
    assert run_cost.energy_mwh(gpu_hours=1_720_320, gpu_power_w=400) == pytest.approx(688.1, abs=0.05)


def test_power_usage_effectiveness_multiplies():
    """arXiv:2302.13971 table 15: LLaMA-7B, 82,432 hours, 400 W, PUE 1.1: 36 MWh."""
    energy = run_cost.energy_mwh(gpu_hours=82_432, gpu_power_w=400, power_usage_effectiveness=1.1)
    assert round(energy) == 36


@pytest.mark.parametrize(("bandwidth", "published_s"), [(100e9, 21), (200e9, 10.5), (400e9, 5.25)])
def test_adam_of_70b_on_one_host(bandwidth, published_s):
    assert offload_time.cpu_adam_s(num_params=70e9, host_bandwidth_bytes_per_s=bandwidth) == published_s


def test_drives_are_slower_than_host_memory():
    drives = offload_time.nvme_step_s(num_params=70e9, read_bytes_per_s=4 * 2.9e9, write_bytes_per_s=4 * 2.0e9)
    host = offload_time.cpu_adam_s(num_params=70e9, host_bandwidth_bytes_per_s=100e9)
    assert drives > 5 * host
    assert drives == pytest.approx(72.4 + 105, abs=0.1)


def test_host_copy_takes_the_link_rate():
    assert offload_time.host_transfer_s(num_bytes=3e9, link_bandwidth_bytes_per_s=1.5e9) == 2

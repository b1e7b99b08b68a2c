"""Products of sizes that are no multiple of eight against the ones timed on H100."""

import csv
from pathlib import Path
from statistics import median

import pytest

from shardwise.catalog import load_gpu
from shardwise.predict.product_alignment import unaligned_batched_flop_per_s, unaligned_share
from shardwise.predict.product_rates import Product, product_rates
from shardwise.predict.time import predict_time
from shardwise.validate.shipped_runs import timed_runs

H100, A100 = load_gpu("h100-sxm"), load_gpu("a100-sxm-80")
READINGS = Path(__file__).parents[2] / "benchmarks/results/2026-11-28-h100-alignment.csv"


def share(gpu, n, k, *, is_forward=True, dtype="fp16"):
    return unaligned_share(gpu, dtype=dtype, out_features=n, in_features=k, is_forward=is_forward)


def test_products_with_and_without_wide_loads_take_their_measured_time():
    """60 products of 8,192 tokens: median error below 6 %; unaligned ones take 2.5 to 6 times as long."""
    errors = []
    with READINGS.open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["kind"] == "gemm":
                shape = {size: int(row[size]) for size in ("m", "n", "k")}
                product = Product(product_pass=row["name"], dtype="fp16", **shape)
                errors.append(abs(product_rates(H100).duration_s(product) / (float(row["time_us"]) * 1e-6) - 1))
    assert len(errors) == 60
    assert median(errors) < 0.06
    assert sorted(errors)[54] < 0.2


def test_only_features_decide_never_tokens():
    assert share(H100, 4096, 4096) == 1.0
    assert share(H100, 4100, 4096) == share(H100, 4096, 4098) == 0.265
    assert share(H100, 4097, 4096) == 0.112
    assert share(H100, 4096, 4097, is_forward=False) == 0.147
    odd_tokens, even_tokens = (Product(product_pass="forward", dtype="bf16", m=m, n=4096, k=4096) for m in (8191, 8192))
    rates = product_rates(H100)
    assert rates.duration_s(odd_tokens) == pytest.approx(rates.duration_s(even_tokens), rel=0.01)


def test_older_parts_lose_a_smaller_share():
    """The narrow kernels are Ampere's: A100 keeps twice the share of H100, and eight bits must be aligned anyway."""
    assert share(A100, 4100, 4096) == 0.53
    assert share(load_gpu("b200-sxm"), 4100, 4096) == pytest.approx(0.1325)
    assert share(load_gpu("rtx-5090"), 4100, 4096) == share(load_gpu("l40s"), 4100, 4096) == 1.0
    assert share(H100, 4100, 4096, dtype="fp8") == 1.0


def test_gpt_2s_table_is_slow_until_it_is_padded():
    """50,257 rows against 50,304: 5 to 6 times on H100."""
    rates = product_rates(H100)
    odd, padded = (
        rates.duration_s(Product(product_pass="forward", dtype="fp16", m=8192, n=n, k=2048)) for n in (50257, 50304)
    )
    assert 5 < odd / padded < 6.7


def test_batched_products_leave_the_matrix_units_of_a100_idle():
    """384 products of 1,024 x 1,024 by 1,024 x 140 in bf16 took 9.232 ms with CUDA 11.6 (pytorch/pytorch#83272)."""
    rate = unaligned_batched_flop_per_s(A100, dtype="bf16", out_features=140, in_features=1024, is_forward=True)
    assert 384 * 2 * 1024 * 1024 * 140 / rate == pytest.approx(9.232e-3, rel=0.01)


def test_unaligned_heads_cost_a_written_out_step_what_they_were_measured_to():
    """13,824 features in 64, 96 and 128 heads (216, 144 and 108 wide), BigScience 2022-02; fitted on none of them."""
    measured, predicted = {}, {}
    for run in timed_runs().runs:
        if run.id in ("BLOOMT-099", "BLOOMT-100", "BLOOMT-101"):
            measured[run.id] = run.measured_s
            predicted[run.id] = predict_time(run.plan)[0].step_s
    for run_id, wide in (("BLOOMT-100", 0.02), ("BLOOMT-101", 0.03)):
        ratios = (times[run_id] / times["BLOOMT-099"] for times in (measured, predicted))
        assert next(ratios) == pytest.approx(next(ratios), rel=wide)

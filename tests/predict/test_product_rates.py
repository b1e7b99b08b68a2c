"""Products against the products that were timed, on points left out of the tables, and properties of the model."""

from itertools import pairwise
from math import exp
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from catalog.tables import rows
from shardwise.catalog import load_gpu, load_gpus
from shardwise.catalog.kernels import load_products
from shardwise.predict.product_rates import (
    BEST_SHAPES,
    TABLES,
    Machine,
    Product,
    ProductRates,
    modelled_s,
    neighbours,
    product_rates,
    sustained_share,
)

H100 = load_gpu("h100-sxm")
A100 = load_gpu("a100-sxm-80")
A100_PCIE = load_gpu("a100-pcie-80")
B200 = load_gpu("b200-sxm")


def product(m, n, k, product_pass="forward", dtype="bf16", groups=1):
    return Product(product_pass=product_pass, dtype=dtype, m=m, n=n, k=k, groups=groups, is_grouped=groups > 1)


def machine_of(choice):
    return Machine(
        num_sms=choice.num_sms,
        peak_flop_per_s=choice.peak_flop_per_s,
        memory_bandwidth_bytes_per_s=choice.memory_bandwidth_bytes_per_s,
    )


def readings(gpu_id, product_pass):
    return tuple(
        reading
        for reading in load_products(gpu_id)
        if reading.product_pass == product_pass and reading.dtype == "bf16" and not reading.is_grouped
    )


def relative_errors(found, table, machine):
    return sorted(
        abs(
            modelled_s(product(row.m, row.n, row.k, row.product_pass), machine)
            * table.ratio(product(row.m, row.n, row.k, row.product_pass).position)
            / row.duration_s
            - 1
        )
        for row in found
    )


@pytest.mark.parametrize("product_pass", ["forward", "dgrad", "wgrad"])
@pytest.mark.parametrize(
    ("gpu_id", "num_readings", "worst_median"),
    [("h100-sxm", 1074, 0.05), ("a100-pcie-80", 61, 0.02), ("b200-sxm", 144, 0.07)],
)
def test_products_left_out_of_the_table_are_met(gpu_id, num_readings, worst_median, product_pass):
    """Every other reading makes the table, the rest are asked for: median error 3.6 to 4.2 % on H100, 1.6 % on A100.

    B200's sweep mixes kernels before and after its power limit set in, shape by shape: 3.4 to 6.7 %.
    """
    choice = next(choice for choice in TABLES if choice.gpu_id == gpu_id)
    # Neighbours of the sweep differ in the number of tokens: odd and even places hold all of them.
    found = sorted(readings(gpu_id, product_pass), key=lambda row: (row.n * 7919 + row.k * 104729 + row.m) % 1_000_003)
    assert len(found) == num_readings
    table = neighbours(found[::2], machine_of(choice))
    assert median(relative_errors(found[1::2], table, machine_of(choice))) <= worst_median


@pytest.mark.parametrize("gpu_id", ["h100-sxm", "a100-pcie-80", "b200-sxm"])
def test_products_of_the_table_take_their_measured_time(gpu_id):
    """Before power settles; two readings of one shape on different days are averaged."""
    choice = next(choice for choice in TABLES if choice.gpu_id == gpu_id)
    for product_pass in ("forward", "dgrad", "wgrad"):
        found = readings(gpu_id, product_pass)
        errors = relative_errors(found, neighbours(found, machine_of(choice)), machine_of(choice))
        assert median(errors) < 0.005
        assert errors[int(0.95 * len(errors))] < 0.05


@pytest.mark.parametrize(
    ("gpu", "shape", "product_pass", "measured_us"),
    [
        (B200, (4096, 57344, 8192), "forward", 3514.6),
        (B200, (4096, 8192, 10240), "dgrad", 613.24),
        (B200, (57344, 8192, 4096), "wgrad", 3770.9),
        (A100_PCIE, (4096, 1536, 5120), "forward", 262.15),
        (H100, (2048, 1024, 4096), "forward", 27.92),
        (H100, (1024, 4096, 2048), "wgrad", 26.92),
        (H100, (512, 4096, 4096), "dgrad", 24.71),
    ],
)
def test_literal_readings_are_repeated(gpu, shape, product_pass, measured_us):
    """SimuMax's B200 and A100 PCIe tables and our H100, from kernels at or below the rate a part holds."""
    seconds = product_rates(gpu).duration_s(product(*shape, product_pass))
    assert seconds * 1e6 == pytest.approx(measured_us, rel=0.05)


def test_long_runs_are_held_at_the_power_limit():
    """8192 x 8192 x 8192 on five H100 of 700 W: 667 to 685 TFLOP/s over seconds, 780 in the first hundredth."""
    seconds = product_rates(H100).duration_s(product(8192, 8192, 8192))
    assert 2 * 8192**3 / seconds / 1e12 == pytest.approx(680, rel=0.005)


def test_a_forward_layer_takes_what_it_took_at_the_power_limit():
    """Llama 8B's widths, 8,192 tokens, one after the other for a second: products alone 4.24 of 5.42 ms."""
    rates = product_rates(H100)
    products = [(8192, 4096, 4096)] * 3 + [(8192, 14336, 4096), (8192, 4096, 14336)]
    seconds = sum(rates.duration_s(product(*shape)) for shape in products)
    attention_s, memory_s = 549_755_813_888 / 538e12, 0.062e-3 + 0.16e-3
    assert seconds + attention_s + memory_s == pytest.approx(5.416e-3, rel=0.03)


@pytest.mark.parametrize(
    ("gpu_id", "share"),
    [("h100-sxm", 0.687), ("h200-sxm", 0.687), ("h800-sxm", 0.687), ("h100-96-hbm2e", 0.732), ("a100-sxm-80", 1.0)],
)
def test_the_rate_a_part_holds_follows_its_power_limit(gpu_id, share):
    """500 W instead of 700 W leave 0.86 of the clock that power holds, and its own peak is 0.81 of h100-sxm's."""
    assert sustained_share(load_gpu(gpu_id)) == pytest.approx(share, abs=1e-3)


def test_a_partial_wave_costs_a_whole_one():
    """A100 has 108 multiprocessors: 1792 has 98 tiles of 128 x 256, 2048 has 128 and needs a second wave."""
    machine = machine_of(TABLES[0])
    small, large = (modelled_s(product(size, size, 4096), machine) for size in (1792, 2048))
    # 98 tiles: one wave of 262,144 FLOP x 4,096 / (312e12 / 108) and the main loop's ends.
    assert small == pytest.approx(96.0e-6, rel=0.06)
    assert large / small > 1.6  # 157 against 97 us
    assert 2 * 2048**2 / large < 2 * 1792**2 / small


@pytest.mark.parametrize(("gpu", "best"), [(A100, 0.869), (A100_PCIE, 0.811)])
def test_a_part_of_the_same_architecture_is_scaled_by_its_best_shape(gpu, best):
    """Same chip, 400 and 300 W: their best shapes differ by 7 %."""
    shape = product(4096, 8192, 8192)
    seconds = product_rates(gpu).duration_s(shape)
    pcie = product_rates(A100_PCIE).duration_s(shape)
    assert pcie / seconds == pytest.approx(best / 0.811, rel=1e-3)


def test_grouped_products_are_slower_with_few_tokens_per_expert():
    """Qwen3-like experts on H100: 64 experts with 512 tokens each take 429 us, with 128 tokens each 225 us."""
    rates = product_rates(H100)
    many, few = (rates.duration_s(product(tokens, 2048, 2048, groups=64)) for tokens in (512, 128))
    assert many * 1e6 == pytest.approx(428.6, rel=0.02)
    assert few * 1e6 == pytest.approx(225.3, rel=0.02)


def test_eight_bits_are_faster_and_reach_less_of_their_peak():
    rates, shape = product_rates(H100), (8192, 8192, 8192)
    wide, narrow = rates.duration_s(product(*shape)), rates.duration_s(product(*shape, dtype="fp8"))
    assert wide / narrow == pytest.approx(1280 / 680, rel=0.01)


def test_a_part_without_a_table_reaches_its_share_of_the_best_shape():
    """MI300X: 0.86 of 51.1 % of the peak before waves; V100 has no reading and takes torch's flat share."""
    for gpu_id, dtype, share in (("mi300x", "bf16", 0.86 * 0.511), ("v100-sxm2-32", "fp16", 0.75)):
        gpu = load_gpu(gpu_id)
        shape = product(128 * gpu.sm_count, 256 * 64, 8192, dtype=dtype)
        reached = shape.flop / product_rates(gpu).duration_s(shape) / gpu.peak_flop_per_s(dtype)
        assert reached == pytest.approx(share, rel=0.02)


@given(m=st.integers(1, 30_000), n=st.integers(1, 30_000), k=st.integers(64, 30_000))
def test_the_model_alone_never_gets_faster_with_more_rows(m, n, k):
    machine = machine_of(TABLES[1])
    assert modelled_s(product(m, n, k), machine) <= modelled_s(product(2 * m, n, k), machine) * (1 + 1e-9)


def test_more_tokens_take_longer_on_every_part():
    for gpu in (H100, A100, B200, load_gpu("mi300x")):
        rates = product_rates(gpu)
        times = [rates.duration_s(product(tokens, 4096, 4096)) for tokens in (512, 1024, 2048, 4096, 8192, 16384)]
        assert all(later > sooner for sooner, later in pairwise(times))


def test_far_from_every_reading_the_typical_ratio_remains():
    table = neighbours(readings("b200-sxm", "forward"), machine_of(TABLES[2]))
    assert table.ratio((40.0, 40.0, 40.0)) == pytest.approx(exp(table.typical_log_ratio), rel=0.02)


def test_a_shape_is_timed_once():
    rates = ProductRates(H100)
    first = rates.duration_s(product(1234, 5678, 910))
    assert rates.duration_s(product(1234, 5678, 910)) == first
    assert product_rates(H100) is product_rates(load_gpu("h100-sxm"))


def test_every_catalogued_part_has_a_time_for_every_pass():
    for gpu in load_gpus():
        for dtype in ("bf16", "fp16", "fp8", "fp32", "tf32"):
            for product_pass in ("forward", "dgrad", "wgrad"):
                for groups in (1, 8):
                    if gpu.peak_flop_per_s(dtype):
                        seconds = product_rates(gpu).duration_s(product(512, 1536, 1024, product_pass, dtype, groups))
                        assert 0 < seconds < 1


def test_best_shapes_are_those_of_the_catalogue():
    measured = {
        (line["accelerator_id"], line["dtype"]): float(line["fraction_of_peak"] or 0)
        or 1e12 * float(line["value"]) / load_gpu(line["accelerator_id"]).peak_flop_per_s(line["dtype"])  # boosts above
        for line in rows("achieved")
        if line["implementation"] in ("MAMF best shape", "best of five squares")
    }
    for best in BEST_SHAPES:
        if (best.part, "bf16") in measured:
            assert best.fraction == pytest.approx(measured[best.part, "bf16"], abs=5e-4)
        if best.fp8_fraction and (best.part, "fp8") in measured:
            assert best.fp8_fraction == pytest.approx(measured[best.part, "fp8"], abs=5e-4)
    assert sum((best.part, "bf16") in measured for best in BEST_SHAPES) >= 13


@pytest.mark.parametrize(("gpu_id", "measured"), [("rtx-4090", 151.5e12), ("rtx-5090", 177.34e12)])
def test_geforce_parts_reach_their_own_share_of_their_own_peak(gpu_id, measured):
    """A square of 4,096, on the 5090 at 400 W (gau-nernst/learn-cuda@e83c256). B200's table, held by its power limit,
    said 54 % of the peak for the 5090, which made it as slow as a 4090; its matrix units are of another kind."""
    shape = product(4096, 4096, 4096)
    rates = product_rates(load_gpu(gpu_id))
    assert rates.table == ""
    assert shape.flop / rates.duration_s(shape) == pytest.approx(measured, rel=0.11)

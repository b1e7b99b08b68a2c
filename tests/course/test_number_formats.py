"""Casts against numbers written down by hand, and what long sums and small updates lose."""

import numpy as np
import pytest

from shardwise.course.number_formats import (
    FORMAT_NAMES,
    accumulated,
    number_format,
    overflow_fraction,
    relative_error,
    rounded,
    updated,
    vanished_fraction,
)


@pytest.mark.parametrize(
    ("name", "bits", "largest", "smallest"),
    [
        ("fp32", (8, 23), 3.4028234663852886e38, 2.0**-149),
        ("bf16", (8, 7), 3.3895313892515355e38, 2.0**-133),
        ("fp16", (5, 10), 65504.0, 2.0**-24),
        ("fp8-e4m3", (4, 3), 448.0, 2.0**-9),
        ("fp8-e5m2", (5, 2), 57344.0, 2.0**-16),
    ],
)
def test_formats_have_the_limits_of_their_standards(name, bits, largest, smallest):
    """IEEE 754-2019; OCP 8-bit floating point specification 1.0 (e4m3, e5m2); bf16 is the upper half of fp32."""
    found = number_format(name)
    assert (found.num_exponent_bits, found.num_mantissa_bits) == bits
    assert found.max_value == pytest.approx(largest, rel=1e-7)
    assert found.smallest_ratio == smallest


@pytest.mark.parametrize(
    ("name", "value", "kept"),
    [
        ("bf16", 1 + 2**-8, 1.0),  # a tie goes to the even neighbour
        ("bf16", 1 + 3 * 2**-8, 1 + 2**-6),
        ("bf16", 3.14159265, 3.140625),
        ("fp16", 2**-25 * 1.01, 2**-24),
        ("fp16", 2**-25, 0.0),
        ("fp16", 70000.0, np.inf),
        ("fp8-e4m3", 17.0, 16.0),
        ("fp8-e4m3", 19.0, 20.0),
        ("fp8-e5m2", 70000.0, np.inf),
    ],
)
def test_casts_round_to_the_nearest_even(name, value, kept):
    assert rounded(np.array([value]), name)[0] == kept


def test_e4m3_has_nan_where_the_others_have_infinity():
    assert np.isnan(rounded(np.array([1e6]), "fp8-e4m3")[0])


@pytest.mark.parametrize("name", FORMAT_NAMES)
def test_rounding_twice_is_rounding_once(name):
    values = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    once = rounded(values, name)
    assert (rounded(once, name) == once).all()


def test_a_scale_moves_small_gradients_into_the_window_of_fp16_and_large_ones_out():
    gradients = np.array([1e-8, 1e-6, 1e-3, 1.0], dtype=np.float32)
    assert vanished_fraction(gradients, "fp16") == 0.25
    assert vanished_fraction(gradients, "fp16", scale=1024) == 0
    assert overflow_fraction(gradients, "fp16", scale=1e6) == 0.25
    assert vanished_fraction(gradients, "bf16") == 0


def test_256_terms_added_in_bf16_are_one_and_a_half_percent_off():
    terms = (1 + np.random.default_rng(0).standard_normal((256, 1000))).astype(np.float32)
    exact = terms.astype(np.float64).sum(axis=0)
    assert relative_error(accumulated(terms, "bf16"), exact) == pytest.approx(0.015, abs=0.003)
    assert relative_error(accumulated(terms, "fp32"), exact) < 1e-6


def test_a_weight_in_bf16_does_not_feel_updates_below_half_a_step():
    assert updated(1.0, update=2**-10, num_steps=1000, name="bf16") == 1.0
    assert updated(1.0, update=2**-8, num_steps=64, name="bf16") == 0.75
    assert updated(1.0, update=2**-10, num_steps=512, name="fp32") == 0.5

"""Simpler forms of goodput, tokens and updates of whole runs."""

import pytest

from shardwise.course.formulas import compute_optimal, goodput, kernel_time
from shardwise.formulas.goodput import exponential_goodput


@pytest.mark.parametrize(
    ("blocking_s", "exact_percent", "additive_percent", "reciprocal_percent"),
    [(30, 11.9, 12.7, 11.3), (300, 25.5, 28.6, 22.2)],
)
def test_first_order_forms_miss_the_exact_loss(blocking_s, exact_percent, additive_percent, reciprocal_percent):
    """M = 3.09 h, R = 600 s, tau = sqrt(2 delta M)."""
    mtbf_s = 3.09 * 3600
    interval_s = goodput.young_interval_s(blocking_s=blocking_s, mtbf_s=mtbf_s)
    run = {"interval_s": interval_s, "blocking_s": blocking_s, "restart_s": 600, "mtbf_s": mtbf_s}
    additive = goodput.first_order_loss(**run)
    assert (1 - exponential_goodput(**run)) * 100 == pytest.approx(exact_percent, abs=0.06)
    assert additive * 100 == pytest.approx(additive_percent, abs=0.06)
    assert (1 - 1 / (1 + additive)) * 100 == pytest.approx(reciprocal_percent, abs=0.06)


def test_rsc_form_agrees_to_first_order():
    run = {"interval_s": 3600.0, "blocking_s": 60.0, "restart_s": 300.0, "mtbf_s": 400 * 3600.0}
    assert goodput.effective_training_time_ratio(**run) == pytest.approx(exponential_goodput(**run), abs=2e-4)


def test_chinchilla_itself():
    """arXiv:2203.15556: 70B parameters, 1.4T tokens, 5.76e23 FLOP in table 3's last column family."""
    tokens = compute_optimal.chinchilla_tokens(num_params=70e9)
    assert tokens == 1.4e12
    flop = compute_optimal.training_flop(num_active_params=70e9, num_tokens=tokens)
    assert flop == pytest.approx(5.76e23, rel=0.03)


def test_llama_405b_flop_is_the_published_3_8e25():
    """arXiv:2407.21783 section 1: 3.8 x 10^25 FLOP."""
    flop = compute_optimal.training_flop(num_active_params=405_853_388_800, num_tokens=15.6e12)
    assert flop == pytest.approx(3.80e25, abs=0.005e25)
    assert flop == 6 * 405_853_388_800 * 15.6e12


def test_adam_on_four_h100_is_a_fifth_of_a_second():
    """17.5B parameters per GPU: 0.18 s with 30 bytes, 0.17 s with 28."""
    seconds = kernel_time.gpu_adam_s(num_params=17.5e9, memory_bandwidth_bytes_per_s=3.35e12)
    assert seconds == pytest.approx(0.17, abs=0.005)

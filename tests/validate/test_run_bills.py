"""Published bills of whole runs: what is predicted of them, and what is not compared."""

import pytest

from shardwise.validate.run_bills import run_bills

REPORT = run_bills()
ROWS = {(row.id, row.quantity): row for row in REPORT.rows}


@pytest.mark.parametrize(
    ("bill", "quantity", "printed"),
    [
        ("COST-011", "GPU-hours", 30.84e6),  # Llama 3.1 405B, model card
        ("COST-023", "GPU-hours", 2.664e6),  # DeepSeek-V3, arXiv:2412.19437 table 1
        ("COST-026", "dollars", 5.576e6),  # DeepSeek-V3, all stages
        ("COST-003", "GPU-hours", 1_720_320),  # Llama 2 70B, model card
        ("COST-030", "days", 21),  # LLaMA 65B, arXiv:2302.13971
        ("COST-030", "MWh", 449),
        ("COST-046", "days", 118.24),  # BLOOM 176B
        ("COST-049", "GPU-hours", 7.0e6),  # Falcon 180B
    ],
)
def test_public_totals_lie_inside_the_predicted_band(bill, quantity, printed):
    row = ROWS[bill, quantity]
    assert row.published_amount == pytest.approx(printed)
    assert row.is_in_band


def test_llama_405b_follows_from_its_reported_rate_within_a_twentieth():
    """38 to 43 % MFU (arXiv:2407.21783, table 4) and the goodput predicted for 16,384 GPUs."""
    assert ROWS["COST-011", "GPU-hours"].signed_error_fraction == pytest.approx(-0.05, abs=0.01)


def test_a_run_far_below_the_usual_rate_is_outside_its_band():
    """Llama 3.2 1B was distilled: 370,000 hours, eight times what its own tokens cost."""
    row = ROWS["COST-013", "GPU-hours"]
    assert not row.is_in_band
    assert row.signed_error_fraction < -0.8


def test_seven_in_ten_figures_are_inside_and_no_row_is_dropped_silently():
    assert 0.65 < REPORT.in_band_fraction < 0.75
    assert len({row.id for row in REPORT.rows} | {row.id for row in REPORT.unused}) == 69
    assert all(row.reason for row in REPORT.unused)

"""Bubbles and micro-batches in flight."""

import pytest

from shardwise.course.formulas import pipeline_bubbles as bubbles
from shardwise.course.formulas import pipeline_in_flight as in_flight


def test_the_two_denominators_describe_one_pipeline():
    over_ideal = bubbles.bubble_over_ideal(pp=4, num_microbatches=16)
    share = bubbles.idle_fraction(pp=4, num_microbatches=16)
    assert over_ideal == 0.1875
    assert share == pytest.approx(0.1579, abs=5e-5)
    assert share == pytest.approx(over_ideal / (1 + over_ideal))


def test_one_stage_has_no_bubble():
    assert bubbles.bubble_over_ideal(pp=1, num_microbatches=7) == 0
    assert bubbles.idle_fraction(pp=1, num_microbatches=7) == 0
    assert bubbles.start_skew_s(pp=1, chunk_forward_s=3.0) == 0


@pytest.mark.parametrize("vpp", [1, 2, 3])
def test_more_microbatches_never_hurt(vpp):
    shares = [bubbles.idle_fraction(pp=5, num_microbatches=m, vpp=vpp) for m in (1, 2, 7, 31, 997)]
    assert shares == sorted(shares, reverse=True)


def test_schedules_with_unit_times():
    """p=4, F=B=W=1 (arXiv:2401.10241 table 1): 9, 4.5, 3 and 0."""
    whole = {"pp": 4, "forward_s": 1.0, "backward_s": 2.0}
    split = {"pp": 4, "forward_s": 1.0, "input_backward_s": 1.0, "weight_backward_s": 1.0}
    assert bubbles.one_f_one_b_idle_s(**whole) == 9
    assert bubbles.interleaved_idle_s(**whole, vpp=2) == 4.5
    assert bubbles.zb_h1_idle_s(**split) == 3
    assert bubbles.zb_h2_idle_s(**split) == 0


def test_zero_bubble_is_a_third_of_1f1b_for_equal_thirds():
    split = {"pp": 7, "forward_s": 2.0, "input_backward_s": 2.0, "weight_backward_s": 2.0}
    assert bubbles.zb_h1_idle_s(**split) * 3 == bubbles.one_f_one_b_idle_s(pp=7, forward_s=2.0, backward_s=4.0)


def test_idle_time_is_never_negative():
    assert bubbles.zb_h1_idle_s(pp=4, forward_s=1.0, input_backward_s=1.0, weight_backward_s=9.0) == 0
    assert bubbles.zb_h2_idle_s(pp=4, forward_s=1.0, input_backward_s=1.0, weight_backward_s=9.0) == 0
    assert bubbles.dualpipe_idle_s(pp=8, forward_backward_s=1.0, backward_s=1.0, weight_backward_s=9.0) == 0


def test_interleaving_holds_more_on_the_first_stage():
    """By simulation: p=4 v=2 5.5, v=4 4.75; p=8 v=2 11.5."""
    assert in_flight.interleaved_in_flight(pp=4, vpp=2) == 5.5
    assert in_flight.interleaved_in_flight(pp=4, vpp=4) == 4.75
    assert in_flight.interleaved_in_flight(pp=8, vpp=2) == 11.5


def test_peaks_at_four_stages_and_sixteen_microbatches():
    assert in_flight.gpipe_in_flight(num_microbatches=16) == 16
    held = [in_flight.one_f_one_b_in_flight(pp=4, stage=stage, num_microbatches=16) for stage in range(4)]
    assert held == [4, 3, 2, 1]
    assert in_flight.zb_h1_in_flight(pp=4, num_microbatches=16) == 4
    assert in_flight.zb_h2_in_flight(pp=4, num_microbatches=16) == 7
    assert in_flight.zbv_in_flight(pp=4, num_microbatches=16) == 4
    assert in_flight.dualpipe_in_flight(pp=4, num_microbatches=16) == 4.5


def test_nothing_holds_more_than_there_is():
    assert in_flight.one_f_one_b_in_flight(pp=8, stage=0, num_microbatches=3) == 3
    assert in_flight.zb_h2_in_flight(pp=8, num_microbatches=3) == 3
    assert in_flight.dualpipe_in_flight(pp=8, num_microbatches=3) == 3

"""Activation checkpointing: peaks and recomputed layers against the closed forms of Chen et al. 2016."""

import pytest

from shardwise.course.checkpointing import best_interval, run_checkpointed


def run(layers, every, size=17.0, start=1.0):
    return run_checkpointed(num_hidden_layers=layers, every=every, layer_bytes=size, input_bytes=start)


@pytest.mark.parametrize(("every", "peak"), [(0, 32 * 17), (1, 32 + 17), (2, 16 + 34), (4, 8 + 68), (32, 1 + 544)])
def test_32_layers_of_17_inputs_hold_inputs_of_segments_and_one_segment(every, peak):
    assert run(32, every).peak_bytes == peak


def test_every_layer_is_recomputed_once_and_costs_a_third():
    assert run(32, 0).num_recomputed == 0
    for every in (1, 4, 5, 32):
        assert run(32, every).num_recomputed == 32
        assert run(32, every).extra_compute_fraction == pytest.approx(1 / 3)


def test_the_root_of_the_layers_is_best_only_for_layers_that_keep_nothing_else():
    assert best_interval(num_hidden_layers=100, layer_bytes=1, input_bytes=1) == 10
    assert best_interval(num_hidden_layers=100, layer_bytes=17, input_bytes=1) in (2, 3)


@pytest.mark.parametrize(("layers", "every"), [(7, 3), (13, 5), (1, 1)])
def test_forward_runs_in_order_and_backward_in_reverse_when_segments_are_uneven(layers, every):
    moments = run(layers, every).moments
    assert [one.layer for one in moments if one.work == "forward"] == list(range(layers))
    assert [one.layer for one in moments if one.work == "backward"] == list(reversed(range(layers)))


def test_nothing_is_run_backward_before_it_was_run_again():
    done = set()
    for one in run(12, 5).moments:
        if one.work == "recompute":
            done.add(one.layer)
        elif one.work == "backward":
            assert one.layer in done

"""Training with gradients in a narrow format: who stalls, who needs a scale, how a dynamic scale moves."""

import pytest

from shardwise.course.loss_scaling import ScalerSettings, train

PLAIN = ScalerSettings(first_ratio=1.0)


def final_loss(name, scaler, num_steps=40):
    return train(name, scaler, num_steps=num_steps, seed=1)[-1].loss_ratio


def test_bf16_trains_as_fp32_does_without_a_scale():
    assert final_loss("bf16", PLAIN) == pytest.approx(final_loss("fp32", PLAIN), rel=0.01)


def test_fp16_stalls_without_a_scale_and_trains_with_one():
    assert final_loss("fp16", PLAIN) > 1e-2
    assert final_loss("fp16", ScalerSettings(first_ratio=2.0**16)) < 1e-8


def test_an_overflow_updates_nothing_and_halves_the_scale():
    steps = train("fp16", ScalerSettings(first_ratio=2.0**40, is_dynamic=True), num_steps=4, seed=0)
    assert [step.is_skipped for step in steps] == [True] * 4
    assert [step.loss_ratio for step in steps] == [1.0] * 4
    assert [step.scale_ratio for step in steps] == [2.0**40, 2.0**39, 2.0**38, 2.0**37]


def test_eight_good_steps_double_the_scale():
    steps = train("fp16", ScalerSettings(first_ratio=2.0**16, is_dynamic=True), num_steps=17, seed=0)
    assert [step.scale_ratio for step in steps] == [2.0**16] * 8 + [2.0**17] * 8 + [2.0**18]


def test_a_constant_scale_that_is_too_large_never_trains():
    steps = train("fp16", ScalerSettings(first_ratio=2.0**40), num_steps=5, seed=0)
    assert {step.scale_ratio for step in steps} == {2.0**40}
    assert steps[-1].loss_ratio == 1.0

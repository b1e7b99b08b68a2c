"""Peer estimators, against what accelerate 1.15.0, DeepSpeed edaa722 and Megatron-LM d98e8a6 answered when run."""

import pytest

from shardwise.validate.peers import (
    accelerate_estimate,
    accelerate_training_bytes,
    deepspeed_estimate,
    deepspeed_zero2_bytes,
    deepspeed_zero3_bytes,
    megatron_estimate,
    peer_estimates,
)
from shardwise.validate.shipped_runs import measured_runs


@pytest.fixture(scope="module")
def runs():
    return {run.id: run for run in measured_runs().runs}


@pytest.mark.parametrize(
    ("run_id", "states", "activations_sp", "activations_without_sp"),
    [
        ("SIMUB200-001", 55_670_870_016, 12_952_076_288, 14_445_251_788),
        ("SIMUB200-003", 37_122_048_000, 3_789_561_856, 7_146_656_563),
        ("ZBPP-025", 4_480_769_664, 10_702_159_872, 11_237_267_865),
        ("ZBPP-040", 15_949_965_312, 15_765_055_488, 16_553_308_262),
        ("TTITAN-001", 60_226_959_360, 77_460_537_344, 81_289_524_019),
        ("TTITAN-014", 49_053_649_920, 377_580_011_520, 1_333_822_036_377),
    ],
)
def test_megatrons_functions_answered_the_same(runs, run_id, states, activations_sp, activations_without_sp):
    with_sp = megatron_estimate(runs[run_id].plan, with_sequence_parallelism=True)
    without_sp = megatron_estimate(runs[run_id].plan, with_sequence_parallelism=False)
    assert with_sp.state_bytes == pytest.approx(states, abs=1)
    assert with_sp.activation_bytes == activations_sp
    assert without_sp.activation_bytes == pytest.approx(activations_without_sp, abs=1)


def test_deepspeeds_functions_answered_the_same():
    assert deepspeed_zero2_bytes(num_params=7_000_000_000, num_gpus=24) == 19_250_000_000
    estimate = deepspeed_zero3_bytes(num_params=7_000_000_000, largest_layer_params=131_072_000, num_gpus=24)
    assert estimate == 5_774_288_000


def test_accelerates_function_answered_the_same():
    assert accelerate_training_bytes(num_params=7_000_000_003, precision="bf16") == 56_000_000_024
    assert accelerate_training_bytes(num_params=7_000_000_003, precision="fp32") == 112_000_000_048


def test_accelerates_command_answered_the_same_for_llama_3_8b(runs):
    """The command on transformers' Llama 3 8B says 64,242,091,008: 1,024 bytes more, its rotary buffers."""
    params = runs["TTITAN-001"].plan.model.num_params
    assert accelerate_training_bytes(num_params=params, precision="bf16") == 64_242_089_984


def test_accelerate_prints_its_largest_part_and_no_activations(runs):
    estimate = accelerate_estimate(runs["TTITAN-001"].plan)
    assert estimate.total_bytes == estimate.optimizer_bytes
    assert estimate.activation_bytes is None


def test_deepspeed_divides_weights_only_in_stage_3(runs):
    stage_1 = deepspeed_estimate(runs["SIMUB200-003"].plan)
    stage_3 = deepspeed_estimate(runs["TTITAN-001"].plan)
    assert stage_1.weights_bytes == 2 * (runs["SIMUB200-003"].plan.model.num_params // 4)
    assert stage_3.weights_bytes < 2 * runs["TTITAN-001"].plan.model.num_params


def test_parts_add_up_to_what_is_printed_where_the_estimator_prints_a_sum(runs):
    for run_id in ("SIMUB200-001", "ZBPP-001", "TTITAN-011"):
        for estimate in peer_estimates(runs[run_id].plan):
            if not estimate.name.startswith("accelerate"):
                parts = estimate.state_bytes + (estimate.activation_bytes or 0)
                assert parts == pytest.approx(estimate.total_bytes, abs=4)

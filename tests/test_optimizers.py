"""Records of optimizers: one for every name, and nothing that they name is missing."""

from typing import get_args

import pytest

from shardwise.optimizers import DEFAULT_OPTIMIZER, OPTIMIZERS, OptimizerName


def test_every_name_has_one_record_and_they_are_in_the_same_order():
    assert tuple(OPTIMIZERS) == get_args(OptimizerName)


def test_the_moments_that_are_kept_in_8_bits_are_another_record_s():
    eight_bit = [kind for kind in OPTIMIZERS.values() if kind.is_8bit]
    assert [(kind.name, kind.eight_bit_of) for kind in eight_bit] == [("adamw-8bit", DEFAULT_OPTIMIZER)]
    assert all(kind.moments == OPTIMIZERS[kind.eight_bit_of].moments for kind in eight_bit)


@pytest.mark.parametrize("kind", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_a_step_moves_each_fp32_moment_twice_or_codes_it(kind):
    """A moment is read and written; Adafactor passes over its statistics once, Muon's matrices have one moment."""
    full = kind.moments - kind.orthogonalises_matrices
    expected = 4 if kind.is_factored else full * 2 * (1 if kind.is_8bit else 4)
    assert kind.state_traffic_bytes == expected

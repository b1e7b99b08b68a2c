"""How much longer a collective takes after computation."""

import torch

from shardwise.train.calibrate import arrival_skew
from shardwise.train.calibrate.clock import Desk
from train.ranks import run_ranks


def _behind_computation(rank):
    """What is said of a call that takes the first of two ranks 1 s and the other 3 s, each time."""
    arrival_skew._call_s = lambda _compute, _call: 1.0 + 2.0 * rank
    return arrival_skew._behind_computation_s(None, None, Desk(device=torch.device("cpu")))


def test_a_call_takes_what_ranks_take_on_average():
    assert run_ranks(2, _behind_computation) == [2.0, 2.0]

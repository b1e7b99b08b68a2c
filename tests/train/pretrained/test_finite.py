"""Weights that were broken before training are not blamed on training."""

import math

import pytest
import torch
from safetensors.torch import save_file

from shardwise.errors import CheckpointError
from shardwise.train.failure.classify import LossError
from shardwise.train.job import CheckpointSpec
from shardwise.train.metrics import StepRecord
from shardwise.train.worker import require_number


def record(step):
    fields = dict.fromkeys(("learning_rate", "step_s", "data_wait_s", "tokens_per_s", "tokens_per_s_per_gpu"), 1.0)
    sizes = dict.fromkeys(("num_tokens", "peak_allocated_bytes", "peak_reserved_bytes"), 1)
    return StepRecord(step=step, loss=math.nan, gradient_norm=1.0, mfu_fraction=None, **fields, **sizes)


def weights(folder, value):
    values = torch.ones(5, 3, dtype=torch.bfloat16)
    values[2, 1] = value
    save_file({"model.norm.weight": torch.ones(3), "lm_head.weight": values}, folder / "model.safetensors")
    return CheckpointSpec(initial_weights=str(folder))


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_first_loss_that_is_none_is_laid_to_weights_that_are_none(tmp_path, value):
    with pytest.raises(CheckpointError, match=r"1 of 15 values of lm_head\.weight in .*/model\.safetensors") as raised:
        require_number(record(1), spec=weights(tmp_path, value))
    assert raised.value.code == "pretrained-not-finite"


def test_a_loss_that_becomes_none_from_good_weights_or_later_is_a_loss(tmp_path):
    with pytest.raises(LossError):
        require_number(record(1), spec=weights(tmp_path, 2.0))
    with pytest.raises(LossError):
        require_number(record(2), spec=weights(tmp_path, math.nan))

"""A run that diverges stops at once, and no state that its last gradient has spoilt is ever saved."""

import math
from dataclasses import replace

import pytest
import torch

from shardwise.train.checkpoint.folder import CheckpointFolder
from shardwise.train.failure.classify import LossError
from shardwise.train.job import CheckpointSpec, OptimizerSpec
from shardwise.train.worker import require_number, run_job
from train.models import make_job
from train.ranks import run_ranks
from train.step_records import step_record


def run_until_it_diverges(_rank, job):
    try:
        run_job(job, device=torch.device("cpu"))
    except LossError as error:
        return error.message, error.fix
    return "came to its end", ""


def test_a_gradient_that_is_no_number_stops_all_ranks_before_it_is_saved(tmp_path):
    job = make_job(layout={"dp_shard": 2}, num_steps=20)
    job = replace(
        job,
        optimizer=OptimizerSpec(learning_rate=1e30, max_grad_norm=0.0),
        checkpoint=CheckpointSpec(folder=str(tmp_path), every_steps=1, num_kept=99),
    )
    first, second = run_ranks(2, run_until_it_diverges, job)
    assert first == second
    message, fix = first
    name, _, rest = message.removeprefix("the ").partition(" of step ")
    assert name in ("loss", "gradient norm")
    diverged_step = int(rest.split()[0])
    saved = [checkpoint.step for checkpoint in CheckpointFolder(tmp_path).complete()]
    assert saved == list(range(1, diverged_step))
    again = f"go on with --resume {tmp_path / f'step-{diverged_step - 1:08d}'}" if saved else WITHOUT
    assert fix == f"{again} with a lower --learning-rate or more --warmup-steps"


WITHOUT = "no checkpoint was saved: start again"


@pytest.mark.parametrize(
    ("spec", "again"),
    [
        (CheckpointSpec(), WITHOUT),
        (CheckpointSpec(folder="states", every_steps=100), WITHOUT),
        (CheckpointSpec(folder="states", resume_from="old"), "go on with --resume old"),
    ],
    ids=["none asked for", "none yet", "resumed"],
)
def test_the_fix_names_no_checkpoint_that_is_not_there(tmp_path, monkeypatch, spec, again):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(LossError, match="the loss of step 3 is nan") as stopped:
        require_number(step_record(step=3, loss=math.nan), spec=spec)
    assert stopped.value.fix == f"{again} with a lower --learning-rate or more --warmup-steps"

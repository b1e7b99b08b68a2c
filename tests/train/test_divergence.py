"""A run that diverges stops at once, and no state that its last gradient has spoilt is ever saved."""

from dataclasses import replace

import torch

from shardwise.train.checkpoint.folder import CheckpointFolder
from shardwise.train.failure.classify import LossError
from shardwise.train.job import CheckpointSpec, OptimizerSpec
from shardwise.train.worker import run_job
from train.models import make_job
from train.ranks import run_ranks


def run_until_it_diverges(_rank, job):
    try:
        run_job(job, device=torch.device("cpu"))
    except LossError as error:
        return error.message
    return "came to its end"


def test_a_gradient_that_is_no_number_stops_all_ranks_before_it_is_saved(tmp_path):
    job = make_job(layout={"dp_shard": 2}, num_steps=20)
    job = replace(
        job,
        optimizer=OptimizerSpec(learning_rate=1e30, max_grad_norm=0.0),
        checkpoint=CheckpointSpec(folder=str(tmp_path), every_steps=1, num_kept=99),
    )
    first, second = run_ranks(2, run_until_it_diverges, job)
    assert first == second
    name, _, rest = first.removeprefix("the ").partition(" of step ")
    assert name in ("loss", "gradient norm")
    diverged_step = int(rest.split()[0])
    saved = [checkpoint.step for checkpoint in CheckpointFolder(tmp_path).complete()]
    assert saved == list(range(1, diverged_step))

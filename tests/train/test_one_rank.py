"""One rank keeps the gradients that it would send, bit for bit those that FSDP2 copies."""

from unittest import mock

import pytest

import shardwise.train.data_parallel
from train.models import make_job
from train.world_member import run


def run_copying(job):
    """The job as FSDP2 runs it by itself: into a second buffer, by way of a quotient."""
    with mock.patch.object(shardwise.train.data_parallel, "is_alone", return_value=False):
        return run(job)


@pytest.mark.parametrize("sequences", [8, 2], ids=["one micro-batch", "four micro-batches"])
def test_gradients_of_one_rank_are_those_that_would_be_copied(worlds, sequences):
    job = make_job(num_steps=3, precision="bf16-mixed", micro_batch_size=sequences)
    (kept,), (copied,) = worlds[1].run(run, job), worlds[1].run(run_copying, job)
    assert kept.losses == copied.losses
    assert kept.norms == copied.norms

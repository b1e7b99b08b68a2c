"""The job that follows from a plan and a request."""

import pytest

from shapes import plan
from shardwise.families import read_model
from shardwise.launch.request import TrainRequest, make_job
from shardwise.layout import Layout
from shardwise.train.job import OptimizerSpec


@pytest.mark.parametrize(("clips", "expected"), [(True, 0.5), (False, 0.0)])
def test_a_plan_that_does_not_clip_is_never_clipped(tmp_path, clips, expected):
    asked = plan(
        read_model("llama-3.1-8b"), engine="native", layout=Layout(dp_shard=8), seq_len=4096, clip_gradients=clips
    )
    request = TrainRequest(optimizer=OptimizerSpec(max_grad_norm=0.5))
    job = make_job(asked, request, prediction=None, run_folder=str(tmp_path))
    assert job.optimizer.max_grad_norm == expected

"""A real Slurm runs a plan's batch file, ends it by its time limit and requeues it; no loss differs: make slurm."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from launch.desk import CONFIG, losses
from launch.slurm import missing, slurm

pytestmark = [pytest.mark.slurm, pytest.mark.skipif(bool(missing()), reason=missing())]
STEPS = int(os.environ.get("SLURM_TEST_STEPS", "400"))
"""More than two minutes of steps on two cores, so that the time limit comes first."""


@pytest.fixture(scope="module")
def desk(tmp_path_factory):
    folder = tmp_path_factory.mktemp("slurm")
    (folder / "config.json").write_text(json.dumps({**CONFIG, "hidden_size": 256, "intermediate_size": 1024}))
    return folder


@pytest.fixture(scope="module")
def scheduler(tmp_path_factory):
    with slurm(tmp_path_factory.mktemp("daemons")) as started:
        yield started


def train(desk, *words):
    """A plan of two processes that shard their states, given to ``shardwise train``."""
    cluster = str(Path(__file__).parents[2] / "examples" / "two-cores.toml")
    plan = ["config.json", cluster, "--dp-shard", "2", "--seq-len", "128", "--global-batch-size", "16"]
    recipe = ["--precision", "fp32", "--no-compile", "--device", "cpu", "--steps", str(STEPS)]
    subprocess.run(
        [sys.executable, "-m", "shardwise", "train", *plan, *recipe, *words],
        cwd=desk,
        check=True,
        stdout=subprocess.DEVNULL,
        env={**os.environ, "GLOO_SOCKET_IFNAME": "lo"},
    )


def written(desk, name, *words):
    train(desk, "--launcher", "slurm", "--out", name, *words)
    return desk / name


def test_a_run_that_its_time_limit_ends_is_requeued_and_comes_to_the_same_losses(desk, scheduler):
    run = written(desk, "limited", "--checkpoint-every", "100000")
    number = scheduler.submit("--time=3", "--signal=B:USR1@60", run / "job.sbatch")
    stopped = scheduler.wait(number, until=lambda job: job["Restarts"] == "1", limit_s=300)
    scheduler("scontrol", "update", f"JobId={number}", "TimeLimit=UNLIMITED")
    assert stopped["JobState"] in ("PENDING", "RUNNING", "COMPLETING", "REQUEUED")
    ended = scheduler.wait(
        number, until=lambda job: job["JobState"] in ("COMPLETED", "FAILED", "TIMEOUT"), limit_s=1800
    )
    log = (scheduler.folder / f"slurm-{number}.log").read_text(encoding="utf-8")
    assert (ended["JobState"], ended["ExitCode"]) == ("COMPLETED", "0:0"), log
    assert "error: the run was stopped by SIGTERM; its newest checkpoint is " in log
    lives = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert {line["life"].partition("-")[0] for line in lives} >= {"1", "2"}
    assert lives[-1]["parent_step"] > 0, "the second life began anew"
    train(desk, "--out", "whole")
    assert losses(run) == losses(desk / "whole")


def test_a_run_that_fails_ends_the_job_with_its_own_exit_code_and_is_not_requeued(desk, scheduler):
    run = written(desk, "failed", "--learning-rate", "1e30", "--max-grad-norm", "0", "--checkpoint-every", "100")
    job = scheduler.wait(
        scheduler.submit("--time=30", run / "job.sbatch"), until=lambda job: job["JobState"] == "FAILED", limit_s=120
    )
    assert (job["ExitCode"], job["Restarts"]) == ("1:0", "0")

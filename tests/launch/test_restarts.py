"""A run that failed is started again where that can help, from its newest checkpoint; none fails twice in vain."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from launch.desk import LIMIT_S, lay_out, losses
from shardwise.errors import ShardwiseError
from shardwise.train.checkpoint.continued import continued
from shardwise.train.failure.record import FailureRecord, write_record
from shardwise.train.failure.retry import Attempt, attempt_of, next_attempt
from shardwise.train.job import CheckpointSpec
from train.models import make_job


def failure(code):
    return ShardwiseError("it failed", code=code, fix="look")


@pytest.mark.parametrize("code", ["train-rank-died", "train-process-died", "train-hang"])
def test_what_a_retry_can_mend_is_tried_again_after_longer_and_longer_waits(code, tmp_path):
    attempt, waits_s = Attempt(), []
    while attempt is not None:
        waits_s.append(attempt.wait_s)
        attempt = next_attempt(failure(code), folder=tmp_path, num_restarts=7, before=attempt)
    assert waits_s == [0, 10, 20, 40, 80, 160, 300, 300]


@pytest.mark.parametrize("code", ["train-out-of-memory", "train-loss", "train-disk-full", "data-none", "train-stopped"])
def test_what_no_retry_can_mend_ends_the_run(code, tmp_path):
    assert next_attempt(failure(code), folder=tmp_path, num_restarts=7, before=Attempt()) is None


def test_no_restart_is_taken_that_was_not_allowed(tmp_path):
    assert next_attempt(failure("train-hang"), folder=tmp_path, num_restarts=0, before=Attempt()) is None


def test_an_unexplained_exception_at_the_same_step_is_no_accident(tmp_path):
    def failed_at(step, before):
        fields = {"kind": "exception", "message": "RuntimeError", "phase": "training", "time_s": 1.0}
        write_record(tmp_path, FailureRecord(rank=0, step=step, **fields))
        return next_attempt(failure("train-failed"), folder=tmp_path, num_restarts=9, before=before)

    first = failed_at(3, Attempt())
    assert attempt_of(first.to_environment()) == replace(first, wait_s=0.0)
    second = failed_at(5, first)
    assert (second.num_restarts, second.num_steps_before) == (2, 5)
    assert failed_at(5, second) is None


def test_checkpoints_of_another_run_are_not_taken_up(tmp_path):
    from shardwise.train.checkpoint.folder import CheckpointFolder
    from shardwise.train.checkpoint.lineage import FACTS, Lineage

    states, run = CheckpointFolder(tmp_path / "states", Lineage(life="1-abcdef")), tmp_path / "run"
    path = states.begin(4)
    (path / ".metadata").write_text("")
    (path / FACTS).write_text(json.dumps({"lineage": {"life": "1-abcdef"}}))
    states.publish(4)
    job = replace(make_job(), run_folder=str(run), checkpoint=CheckpointSpec(folder=str(states.path), resume_from="x"))
    assert continued(job) == job
    (run / "lives").mkdir(parents=True)
    (run / "lives" / "00000001.json").write_text('{"life": "1-abcdef"}')
    assert continued(job).checkpoint.resume_from == str(states.path / "step-00000004")


STEPS = 200
"""So many that a run whose first checkpoint was seen is not at its end when a rank is killed."""
WORDS = ("plan2.json", "--device", "cpu", "--data", "corpus.jsonl", "--steps", str(STEPS), "--learning-rate", "1e-3")


@pytest.fixture(scope="module")
def desk(tmp_path_factory):
    return lay_out(tmp_path_factory.mktemp("restarts"))


def environment(desk):
    return {**os.environ, "XDG_CACHE_HOME": str(desk / "cache"), "GLOO_SOCKET_IFNAME": "lo"}


def command(desk, *words, check=True):
    given = [sys.executable, "-m", "shardwise", "train", *WORDS, *words]
    return subprocess.run(given, cwd=desk, env=environment(desk), capture_output=True, text=True, check=check)


@pytest.fixture(scope="module")
def whole(desk):
    command(desk, "--out", "whole")
    return losses(desk / "whole")


def kill_a_rank_with_a_checkpoint(run, process):
    deadline = time.monotonic() + LIMIT_S
    while not (run / "checkpoints" / "latest").exists():
        assert time.monotonic() < deadline, "the run saved nothing"
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.02)
    os.kill(json.loads((run / "ranks" / "rank-0001.json").read_text(encoding="utf-8"))["pid"], signal.SIGKILL)


def lives_of(run):
    lines = map(json.loads, (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    return {line["life"].partition("-")[0] for line in lines}


@pytest.mark.runs
@pytest.mark.parametrize("starter", ["command", "script"])
def test_a_rank_that_was_killed_costs_a_restart_and_no_loss_differs(starter, desk, whole):
    run = desk / starter
    saving = ("--checkpoint-every", "10", "--restarts", "1", "--out", starter)
    if starter == "script":
        command(desk, *saving, "--dry-run")
        words = [run / "run.sh"]
    else:
        words = [sys.executable, "-m", "shardwise", "train", *WORDS, *saving]
    pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(words, cwd=desk, env=environment(desk), **pipes)
    kill_a_rank_with_a_checkpoint(run, process)
    said = process.communicate(timeout=LIMIT_S)[1]
    assert process.returncode == 0, said
    assert "restart 1 of 1 begins in 10 s" in said
    assert losses(run) == whole
    assert lives_of(run) == {"1", "2"}


@pytest.mark.runs
def test_a_loss_that_is_no_number_is_not_tried_again(desk):
    words = ("--learning-rate", "1e30", "--max-grad-norm", "0", "--checkpoint-every", "10", "--restarts", "5")
    done = command(desk, *words, "--out", "loss", check=False)
    assert done.returncode == 1, done.stderr
    assert "[train-loss]" in done.stderr
    assert "restart 1 of" not in done.stderr
    assert lives_of(desk / "loss") == {"1"}


def test_restarts_without_checkpoints_are_refused(desk, capsys, monkeypatch):
    from shardwise.cli.main import main

    monkeypatch.chdir(desk)
    assert main(["train", "plan1.json", "--restarts", "2"]) == 2
    assert "--restarts does nothing without --checkpoint-every" in capsys.readouterr().err

"""The script of a run, as a scheduler starts and ends it: nobody follows the ranks, and the end still says why."""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest

from launch.desk import LIMIT_S, lay_out
from shardwise.cli.main import main
from shardwise.train.failure.keepers import KEEPERS_VARIABLE
from shardwise.train.patient_torchrun import run_torchrun
from shardwise.train.scripted_torchrun import main as main_of_script
from train.models import make_job

pytestmark = pytest.mark.runs


@pytest.fixture(scope="module")
def desk(tmp_path_factory):
    return lay_out(tmp_path_factory.mktemp("scripted"))


def going(desk, name, monkeypatch):
    """The script's process, and its run folder, once steps were done."""
    monkeypatch.chdir(desk)
    monkeypatch.setenv("XDG_CACHE_HOME", str(desk / "cache"))
    words = ["plan2.json", "--device", "cpu", "--data", "corpus.jsonl", "--steps", "1000000", "--dry-run"]
    assert main(["train", *words, "--checkpoint-every", "1000000", "--out", name]) == 0
    run = desk / name
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}
    process = subprocess.Popen([run / "run.sh"], env=environment, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + LIMIT_S
    while not (run / "metrics.jsonl").exists() or (run / "metrics.jsonl").stat().st_size == 0:
        assert time.monotonic() < deadline, "the run did not get going"
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.1)
    return process, run


def test_a_signal_to_the_script_ends_it_as_a_stopped_run(desk, monkeypatch):
    process, run = going(desk, "stopped", monkeypatch)
    again = subprocess.run([run / "run.sh"], capture_output=True, text=True, check=False, timeout=LIMIT_S)
    assert again.returncode == 2
    assert f"error: the folder {run} is held by another run (process " in again.stderr
    process.send_signal(signal.SIGTERM)
    said = process.communicate(timeout=LIMIT_S)[1]
    assert process.returncode == 143
    read = f"weights: random, drawn from seed 0 (no --weights); tokens: {desk / 'corpus.jsonl'}; optimizer: adamw, "
    assert said.startswith(read)
    assert "Traceback" not in said
    assert "error: the run was stopped by SIGTERM; its newest checkpoint is " in said
    assert f"fix: go on with --resume {run / 'checkpoints'}" in said


def test_a_rank_that_is_killed_ends_the_script_with_one_message(desk, monkeypatch):
    process, run = going(desk, "killed", monkeypatch)
    os.kill(json.loads((run / "ranks" / "rank-0001.json").read_text(encoding="utf-8"))["pid"], signal.SIGKILL)
    said = process.communicate(timeout=LIMIT_S)[1]
    assert process.returncode == 1
    assert "error: rank 1 (process " in said
    assert "died without a word" in said
    assert "ChildFailedError" not in said
    assert (run / "lives" / "00000001.ended").exists(), "another host may go on at once"


def written(desk, name, monkeypatch):
    """The run folder of a run of one process that was not started."""
    monkeypatch.chdir(desk)
    words = ["plan1.json", "--device", "cpu", "--steps", "2", "--dry-run", "--out", name]
    assert main(["train", *words]) == 0
    return desk / name


def test_ranks_start_under_a_torchrun_of_the_user_too(desk, monkeypatch):
    """Without the variables that the script sets, torchrun serves the store of the ranks itself."""
    run = written(desk, "plain", monkeypatch)
    environment = {name: value for name, value in os.environ.items() if name != "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"}
    words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=1", "-m", "shardwise.train.worker"]
    done = subprocess.run(
        [sys.executable, *words, run / "job.json"], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert (run / "measurement.json").is_file()


def test_a_script_prints_its_steps_and_ends_with_the_page_of_the_run(desk, monkeypatch):
    run = written(desk, "steps", monkeypatch)
    done = subprocess.run([run / "run.sh"], capture_output=True, text=True, check=True, timeout=LIMIT_S)
    first, *_, last = [line for line in done.stderr.splitlines() if line.startswith("step ")]
    assert re.fullmatch(r"step 1/2  loss \d\.\d{3}  [\d,]+ tokens/s/GPU  MFU \d+\.\d%", first)
    assert last.startswith("step 2/2  loss ")
    assert done.stderr.splitlines()[-1] == f"wrote {run / 'report.html'}"
    assert "2 steps</h1>" in (run / "report.html").read_text(encoding="utf-8")


def test_a_script_that_cannot_go_on_from_its_checkpoint_says_so(desk, monkeypatch):
    """It was there when the script was written."""
    run = written(desk, "gone", monkeypatch)
    job = json.loads((run / "job.json").read_text(encoding="utf-8"))
    job["checkpoint"]["resume_from"] = str(desk / "deleted")
    (run / "job.json").write_text(json.dumps(job), encoding="utf-8")
    done = subprocess.run([run / "run.sh"], capture_output=True, text=True, check=False, timeout=LIMIT_S)
    assert done.returncode == 2
    assert f"error: there is no complete checkpoint in {desk / 'deleted'}: it does not exist [checkpoint-none]" in (
        done.stderr
    )


def test_ranks_may_save_for_longer_than_torchrun_waits_by_itself(monkeypatch):
    """Half a minute, if nobody says otherwise."""
    given = []
    monkeypatch.setattr("shardwise.train.patient_torchrun.torchrun", given.extend)
    monkeypatch.setattr("shardwise.train.scripted_torchrun.read_job", lambda path: make_job())
    assert main_of_script(["--nnodes=2", "-m", "worker", "job.json"]) == 0
    assert given == ["--shutdown-timeout=600", "--nnodes=2", "-m", "worker", "job.json"]


def test_every_start_has_a_name_of_its_own(monkeypatch):
    """A container that starts again has the same process ids, and the records of the start before."""
    given = []
    monkeypatch.setenv(KEEPERS_VARIABLE, "{}")
    monkeypatch.setattr("shardwise.train.patient_torchrun.torchrun", given.extend)
    for _ in range(2):
        run_torchrun(["--standalone", "-m", "worker"])
    names = [word for word in given if word.startswith("--rdzv-id=")]
    assert len(set(names)) == 2


def test_a_torchrun_that_cannot_be_told_to_wait_is_not_told(monkeypatch):
    given = []
    monkeypatch.setattr("shardwise.train.patient_torchrun.torchrun", given.extend)
    monkeypatch.setattr("shardwise.train.scripted_torchrun.read_job", lambda path: make_job())
    monkeypatch.setattr("shardwise.train.patient_torchrun.get_args_parser", argparse.ArgumentParser)
    assert main_of_script(["-m", "worker", "job.json"]) == 0
    assert given == ["-m", "worker", "job.json"]


def test_a_ctrl_c_before_there_are_ranks_is_a_stop(monkeypatch, capsys):
    def interrupted(words):
        raise KeyboardInterrupt

    monkeypatch.setattr("shardwise.train.patient_torchrun.torchrun", interrupted)
    monkeypatch.setattr("shardwise.train.scripted_torchrun.read_job", lambda path: make_job())
    assert main_of_script(["-m", "worker", "job.json"]) == 130
    assert capsys.readouterr().err.startswith("error: the run was stopped by SIGINT; ")

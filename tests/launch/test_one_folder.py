"""Real runs that share a folder: a rollback exports what it trained, and a second run never mixes with a first."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from safetensors.torch import load_file

from launch.desk import LIMIT_S, lay_out
from shardwise.measure.own_lines import lineage_lines
from shardwise.train.checkpoint.folder import CheckpointFolder, find_checkpoint
from shardwise.train.checkpoint.lineage import lineage_of

pytestmark = pytest.mark.runs


def words_of(plan, *words):
    command = [sys.executable, "-m", "shardwise", "train", plan, "--device", "cpu", "--data", "corpus.jsonl", "--json"]
    return [*command, *map(str, words)]


def environment(desk):
    return {**os.environ, "XDG_CACHE_HOME": str(desk / "cache"), "GLOO_SOCKET_IFNAME": "lo"}


def train(desk, plan, *words):
    """Exit code, answer, and what was said beside it."""
    done = subprocess.run(
        words_of(plan, *words),
        **{"cwd": desk, "env": environment(desk), "capture_output": True, "text": True, "timeout": LIMIT_S},
        check=False,
    )
    return done.returncode, json.loads(done.stdout), done.stderr


@contextmanager
def going(desk, run, *words):
    """The launcher of a run that has taken steps, and would take a million."""
    process = subprocess.Popen(
        words_of("plan1.json", "--steps", 1000000, "--out", run, *words),
        **{
            "cwd": desk,
            "env": environment(desk),
            "stdout": subprocess.PIPE,
            "stderr": subprocess.DEVNULL,
            "text": True,
        },
    )
    try:
        deadline = time.monotonic() + LIMIT_S
        while not (run / "metrics.jsonl").exists() or (run / "metrics.jsonl").stat().st_size == 0:
            assert time.monotonic() < deadline, "the run did not get going"
            time.sleep(0.1)
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def desk(tmp_path_factory):
    return lay_out(tmp_path_factory.mktemp("folder"))


@pytest.fixture(scope="module")
def rolled_back(desk):
    """A run of 6 steps that went back to 3 with another learning rate, saving in the background; what that said."""
    train(desk, "plan2.json", "--out", "run", "--steps", 6, "--checkpoint-every", 3)
    asked = ("--resume", "run/checkpoints/step-00000003", "--learning-rate", 0.01, "--steps", 5)
    saving = (
        "--checkpoint-every",
        1,
        "--async-checkpoints",
        "--keep",
        1,
        "--export",
        "exported",
        "--tensorboard",
        "board",
    )
    code, _, said = train(desk, "plan2.json", "--out", "run", *asked, *saving)
    assert code == 0
    return said


def test_a_rollback_exports_the_weights_that_it_trained(desk, rolled_back):
    """They are those of the same steps in a folder of their own, bit for bit."""
    first = desk / "first"
    train(desk, "plan2.json", "--out", first, "--steps", 3, "--checkpoint-every", 3)
    asked = ("--resume", first / "checkpoints" / "step-00000003", "--learning-rate", 0.01, "--steps", 5)
    assert train(desk, "plan2.json", "--out", "apart", *asked, "--export", "exported-apart")[0] == 0
    rolled, apart = (load_file(desk / name / "model.safetensors") for name in ("exported", "exported-apart"))
    assert all((rolled[name] == apart[name]).all() for name in apart)


def test_a_rollback_says_what_it_leaves_and_keeps_it(desk, rolled_back):
    states = desk / "run" / "checkpoints"
    assert [found.step for found in CheckpointFolder(states).complete()] == [5], "--keep 1 counts the branch alone"
    newest = find_checkpoint(desk / "run").path
    lineage = lineage_of(newest)
    assert (newest.name, lineage.number, lineage.parent.step) == ("step-00000005", 2, 3)
    abandoned = states / f"abandoned-{lineage.life}"
    assert find_checkpoint(abandoned).step == 6
    assert f"going on from step 3 leaves step-00000006 behind: kept in {abandoned}" in rolled_back


def test_its_metrics_are_told_apart_by_life(desk, rolled_back):
    text = (desk / "run" / "metrics.jsonl").read_text(encoding="utf-8")
    assert [json.loads(line)["step"] for line in text.splitlines()] == [1, 2, 3, 4, 5, 6, 4, 5]
    kept = lineage_lines(text)
    assert [line["step"] for line in kept] == [1, 2, 3, 4, 5]
    assert [line["life"].partition("-")[0] for line in kept] == ["1", "1", "1", "2", "2"]


def test_a_resume_without_a_step_goes_on_in_the_branch(desk, rolled_back):
    """Also where the folder was copied, and with another number of processes."""
    shutil.copytree(desk / "run", desk / "copied")
    code, answer, _ = train(desk, "plan1.json", "--out", "copied", "--resume", "copied", "--steps", 7)
    assert code == 0
    assert [step["step"] for step in answer["measurement"]["steps"]] == [6, 7]
    lines = lineage_lines((desk / "copied" / "metrics.jsonl").read_text(encoding="utf-8"))
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6, 7]


def test_a_second_run_in_a_folder_is_refused_and_writes_nothing(desk):
    run = desk / "held"
    with going(desk, run, "--checkpoint-every", 1000000) as process:
        before = {path: path.stat().st_mtime_ns for path in run.glob("[!.]*.json")}  # a rank's own passing files aside
        code, answer, _ = train(desk, "plan1.json", "--out", run, "--resume", run, "--steps", 9)
        assert (code, answer["code"]) == (2, "train-folder-held")
        assert f"process {process.pid} on " in answer["error"]
        other = ("--out", desk / "other", "--checkpoints", run / "checkpoints", "--checkpoint-every", 3)
        assert train(desk, "plan1.json", *other)[1]["code"] == "train-folder-held"
        assert not (desk / "other").exists()
        assert {path: path.stat().st_mtime_ns for path in run.glob("[!.]*.json")} == before
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=LIMIT_S) == 128 + signal.SIGTERM
    assert train(desk, "plan1.json", "--out", run, "--resume", run, "--steps", 1)[1]["code"] == "checkpoint-steps"


def rank_of(run):
    return json.loads((run / "ranks" / "rank-0000.json").read_text(encoding="utf-8"))["pid"]


def stop_between_saves(run, pids):
    """Let processes stand still; one that is about to publish a checkpoint when it is stopped would do so on waking."""
    deadline = time.monotonic() + LIMIT_S
    while True:
        send(signal.SIGSTOP, pids)
        while not all(map(stands_still, pids)):
            assert time.monotonic() < deadline, "a process did not stop"
            time.sleep(0.01)
        if not any((run / "checkpoints").glob("unfinished-*")):
            return
        send(signal.SIGCONT, pids)
        time.sleep(0.01)


def send(number, pids):
    for pid in pids:
        os.kill(pid, number)


def stands_still(pid):
    """Whether all threads of a process were stopped, which some of them may be later than others."""
    threads = [path.read_text(encoding="utf-8") for path in Path(f"/proc/{pid}/task").glob("*/stat")]
    return all(text.rpartition(")")[2].split()[0] == "T" for text in threads)


def test_a_run_that_wakes_up_replaced_stops_without_a_trace(desk):
    """As if another host had seen no sign of life for a minute, and begun the next life meanwhile."""
    run = desk / "replaced"
    with going(desk, run, "--checkpoint-every", 20, "--keep", 1000000) as process:
        stopped = (rank_of(run), process.pid)
        stop_between_saves(run, stopped)
        life = json.loads((run / "lives" / "00000001.json").read_text(encoding="utf-8"))
        text = json.dumps({**life, "life": "2-other", "host": "elsewhere", "machine": "elsewhere", "pid": 77})
        (run / "lives" / "00000002.json").write_text(text, encoding="utf-8")
        before = sorted(path.name for path in (run / "checkpoints").glob("step-*"))
        send(signal.SIGCONT, stopped)
        out, _ = process.communicate(timeout=LIMIT_S)
        assert (process.returncode, json.loads(out)["code"]) == (1, "train-folder-lost")
        assert "process 77 on elsewhere" in json.loads(out)["error"]
    assert sorted(path.name for path in (run / "checkpoints").glob("step-*")) == before
    assert not (run / "failures").exists()
    assert sorted(path.name for path in (run / "lives").glob("*.ended")) == []


def test_a_folder_that_is_deleted_under_a_run_is_the_cause_that_is_said(desk):
    run = desk / "deleted"
    with going(desk, run, "--checkpoint-every", 1) as process:
        run.rename(desk / "moved")
        out, _ = process.communicate(timeout=LIMIT_S)
        assert (process.returncode, json.loads(out)["code"]) == (1, "train-folder-gone")
        assert json.loads(out)["error"].startswith(f"the folder {run} was deleted or moved while the run was writing")
    assert list(run.rglob("COMPLETE")) == [], "what a save began anew is never published"

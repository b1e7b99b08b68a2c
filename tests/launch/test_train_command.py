"""``shardwise train`` as its users run it: torchrun, real data, checkpoints, and processes that are really killed."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from launch.desk import LIMIT_S, lay_out, losses
from shardwise.cli.main import main
from shardwise.launch.surroundings import may_fork
from shardwise.train.checkpoint.folder import CheckpointFolder
from shardwise.train.failure.record import is_alive

ENDLESS = 1_000_000


@pytest.fixture(scope="module")
def desk(tmp_path_factory):
    """A folder with what runs start from."""
    return lay_out(tmp_path_factory.mktemp("desk"))


def command(desk, *words):
    environment = {**os.environ, "XDG_CACHE_HOME": str(desk / "cache"), "GLOO_SOCKET_IFNAME": "lo"}
    full = [sys.executable, "-m", "shardwise", "train", *map(str, words), "--device", "cpu", "--json"]
    return subprocess.Popen(full, cwd=desk, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def answer(process):
    """Exit code and JSON, long before the ten minutes end that a collective may take."""
    out, err = process.communicate(timeout=300)
    assert out, err
    return process.returncode, json.loads(out)


def started(desk, *words, out):
    """A run that has done some steps."""
    process = command(desk, "plan2.json", "--steps", ENDLESS, "--out", out, *words)
    deadline = time.monotonic() + LIMIT_S
    metrics = desk / out / "metrics.jsonl"
    while time.monotonic() < deadline and process.poll() is None:
        if metrics.exists() and len(metrics.read_text(encoding="utf-8").splitlines()) > 2:
            return process
        time.sleep(0.1)
    process.kill()
    raise AssertionError(f"the run did not get going: {process.communicate()}")


@pytest.fixture(scope="module")
def going(desk):
    """A run that has done some steps, and the processes of its ranks."""
    process = started(desk, out="killed")
    records = [json.loads(path.read_text(encoding="utf-8")) for path in (desk / "killed" / "ranks").glob("*.json")]
    return process, {record["rank"]: record["pid"] for record in records}


@pytest.mark.skipif(not may_fork("cpu"), reason="ranks are started one by one here")
def test_ranks_are_forked_from_one_process_that_has_one_thread(going):
    _, pids = going
    (parent,) = {
        Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[1] for pid in pids.values()
    }
    assert b"multiprocessing.forkserver" in Path(f"/proc/{parent}/cmdline").read_bytes()
    assert len(list(Path(f"/proc/{parent}/task").iterdir())) == 1
    assert "libtorch" in Path(f"/proc/{parent}/maps").read_text(encoding="utf-8")


def test_a_killed_process_ends_the_run_with_one_message(going):
    process, pids = going
    os.kill(pids[1], signal.SIGKILL)
    code, said = answer(process)
    assert (code, said["code"]) == (1, "train-rank-died")
    assert said["error"].startswith(f"rank 1 (process {pids[1]} on ")


@pytest.mark.runs
def test_a_run_whose_command_is_killed_saves_a_checkpoint_and_ends(desk):
    process = started(desk, "--checkpoint-every", ENDLESS, out="orphaned")
    (torchrun,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text(encoding="utf-8").split()
    records = [json.loads(path.read_text(encoding="utf-8")) for path in (desk / "orphaned" / "ranks").glob("*.json")]
    process.kill()
    process.communicate()
    ends_s = time.monotonic() + LIMIT_S
    processes = [int(torchrun), *(record["pid"] for record in records)]
    while any(map(is_alive, processes)) and time.monotonic() < ends_s:
        time.sleep(0.1)
    assert len(records) == 2
    assert not any(map(is_alive, processes))
    newest = CheckpointFolder(desk / "orphaned" / "checkpoints").newest()
    assert newest.step == max(losses(desk / "orphaned"))


def saved_when_stopped(process, folder, *, exit_code):
    """The checkpoint of the last step of a stopped run, and what the command said of it."""
    code, said = answer(process)
    assert (code, said["code"]) == (exit_code, "train-stopped")
    newest = CheckpointFolder(folder / "checkpoints").newest()
    assert newest.step == max(losses(folder))
    assert str(newest.path) in said["error"]
    return newest, said


@pytest.mark.runs
def test_a_signal_to_every_process_of_the_run_lets_ranks_save(desk):
    """As schedulers send it: to the command, to torchrun, to what ranks are forked from and to the ranks."""
    process = started(desk, "--checkpoint-every", ENDLESS, out="scheduled")
    (torchrun,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text(encoding="utf-8").split()
    os.killpg(int(torchrun), signal.SIGTERM)
    process.send_signal(signal.SIGTERM)
    saved_when_stopped(process, desk / "scheduled", exit_code=143)
    records = [json.loads(path.read_text(encoding="utf-8")) for path in (desk / "scheduled" / "ranks").glob("*.json")]
    assert not any(is_alive(record["pid"]) for record in records)


def test_ctrl_c_saves_a_checkpoint_and_says_how_to_go_on(desk):
    process = started(desk, "--checkpoint-every", ENDLESS, out="stopped")
    process.send_signal(signal.SIGINT)
    newest, said = saved_when_stopped(process, desk / "stopped", exit_code=130)
    assert said["fix"] == f"go on with --resume {newest.path.parent}"


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--data", "nowhere.txt"], "data-not-found"),
        (["--data", "corpus.jsonl", "--data-field", "body"], "data-field"),
        (["--data", "corpus.jsonl", "--seq-len", "100000"], "data-too-short"),
        (["--data", "corpus.jsonl", "--tokenizer", "nowhere"], "data-tokenizer"),
    ],
)
def test_data_that_cannot_be_used_are_refused_before_processes_start(desk, tmp_path, monkeypatch, capsys, words, code):
    monkeypatch.chdir(desk)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert main(["train", "plan2.json", *words, "--out", str(tmp_path / "run"), "--device", "cpu", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["code"] == code
    assert not (tmp_path / "run" / "ranks").exists()


def test_a_run_says_at_its_start_and_in_its_answer_what_it_begins_with(desk):
    process = command(desk, "plan1.json", "--steps", "1", "--out", "said")
    out, err = process.communicate(timeout=LIMIT_S)
    answer, said = json.loads(out), "weights: random, drawn from seed 0 (no --weights); tokens: synthetic"
    assert err.startswith(said)
    assert (answer["inputs"]["weights"], answer["inputs"]["tokens"]) == ("random", "synthetic")
    kept = json.loads((desk / "said" / "measurement.json").read_text(encoding="utf-8"))
    assert kept["inputs"] == answer["inputs"]


def test_everything_a_run_would_be_refused_for_is_listed_and_nothing_is_written(desk, monkeypatch, capsys):
    monkeypatch.chdir(desk)
    before = sorted(desk.rglob("*"))
    asked = {
        "--out": ("corpus.jsonl", "train-run-folder"),
        "--weights": ("nowhere", "pretrained-files"),
        "--export": (".", "output-exists"),
        "--tensorboard": ("corpus.jsonl/board", "output-path"),
        "--data": ("nowhere.txt", "data-not-found"),
    }
    words = [word for option, (value, _) in asked.items() for word in (option, value)]
    assert main(["train", "plan2.json", "--device", "cpu", "--lint", "--json", *words]) == 2
    findings = json.loads(capsys.readouterr().out)["findings"]
    assert [row["rule"] for row in findings if row["severity"] == "error"] == [code for _, code in asked.values()]
    assert all(row["fix"] for row in findings)
    assert sorted(desk.rglob("*")) == before


def test_a_model_that_cannot_be_built_is_listed(desk, monkeypatch, capsys):
    monkeypatch.chdir(desk)
    config = json.loads((desk / "config.json").read_text(encoding="utf-8")) | {"head_dim": 7}
    (desk / "odd.json").write_text(json.dumps(config), encoding="utf-8")
    words = [
        "train",
        "odd.json",
        "1xh100-sxm",
        "--seq-len",
        "32",
        "--device",
        "cpu",
        "--no-compile",
        "--lint",
        "--json",
    ]
    assert main(words) == 2
    (finding,) = json.loads(capsys.readouterr().out)["findings"]
    assert (finding["rule"], finding["claim"]) == (
        "model-field-range",
        "odd.json: head_dim is 7, but it must be even, as pairs are rotated",
    )


def test_the_surroundings_are_listed_on_request(desk, monkeypatch, capsys):
    monkeypatch.chdir(desk)
    assert main(["train", "plan2.json", "--device", "cpu", "--lint", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["schema"] == "shardwise.lint/1"
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "nowhere0")
    assert main(["train", "plan2.json", "--device", "cpu", "--lint", "--json"]) == 2
    findings = json.loads(capsys.readouterr().out)["findings"]
    assert [row["rule"] for row in findings if row["severity"] == "error"] == ["interface-missing"]
    assert main(["train", "plan2.json", "--device", "cpu", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["code"] == "train-surroundings"

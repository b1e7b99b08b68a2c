"""``shardwise train`` as its users run it: torchrun, real data, checkpoints, and processes that are really killed."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from transformers import AutoModelForCausalLM

from shardwise.cli.main import main
from shardwise.train.checkpoint.folder import CheckpointFolder

CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 260,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 512,
}
ENDLESS = 1_000_000


@pytest.fixture(scope="module")
def desk(tmp_path_factory):
    """A folder with a model, a text, and plans for one process and for two."""
    folder = tmp_path_factory.mktemp("desk")
    (folder / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    lines = [
        json.dumps({"text": f"document {number}: " + "the quick brown fox. " * (number % 7)}) for number in range(99)
    ]
    (folder / "corpus.jsonl").write_text("\n".join(lines), encoding="utf-8")
    for size in (1, 2):
        plan = {
            "model": "config.json",
            "cluster": {"gpu": "h100-sxm", "gpus_per_node": size, "num_nodes": 1},
            "recipe": {"seq_len": 32, "global_batch_size": 4, "precision": "fp32", "compile": False},
            "layout": {"dp_shard": size},
        }
        (folder / f"plan{size}.json").write_text(json.dumps(plan), encoding="utf-8")
    return folder


def command(desk, *words):
    environment = {**os.environ, "XDG_CACHE_HOME": str(desk / "cache"), "GLOO_SOCKET_IFNAME": "lo"}
    full = [sys.executable, "-m", "shardwise", "train", *map(str, words), "--device", "cpu", "--json"]
    return subprocess.Popen(full, cwd=desk, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def answer(process, *, timeout_s=90):
    out, err = process.communicate(timeout=timeout_s)
    assert out, err
    return process.returncode, json.loads(out)


def losses(run):
    return {
        line["step"]: line["loss"]
        for line in map(json.loads, (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    }


def test_a_run_is_saved_exported_and_continued_on_another_number_of_processes(desk):
    data = ("--data", "corpus.jsonl", "--steps")
    code, _ = answer(
        command(desk, "plan2.json", *data, 6, "--out", "whole", "--checkpoint-every", 3, "--export", "exported")
    )
    assert code == 0
    model, report = AutoModelForCausalLM.from_pretrained(desk / "exported", output_loading_info=True)
    assert not report["missing_keys"]
    assert model.config.hidden_size == 32
    resumed = desk / "whole" / "checkpoints" / "step-00000003"
    code, _ = answer(command(desk, "plan1.json", *data, 6, "--out", "part", "--resume", resumed))
    assert code == 0
    whole, part = losses(desk / "whole"), losses(desk / "part")
    assert sorted(part) == [4, 5, 6]
    assert [part[step] for step in (4, 5, 6)] == pytest.approx([whole[step] for step in (4, 5, 6)], rel=1e-5)


def started(desk, *words, out):
    """A run that has done some steps."""
    process = command(desk, "plan2.json", "--steps", ENDLESS, "--out", out, *words)
    deadline = time.monotonic() + 60
    metrics = desk / out / "metrics.jsonl"
    while time.monotonic() < deadline and process.poll() is None:
        if metrics.exists() and len(metrics.read_text(encoding="utf-8").splitlines()) > 2:
            return process
        time.sleep(0.1)
    process.kill()
    raise AssertionError(f"the run did not get going: {process.communicate()}")


def test_a_killed_process_ends_the_run_with_one_message(desk):
    process = started(desk, out="killed")
    record = json.loads((desk / "killed" / "ranks" / "rank-0001.json").read_text(encoding="utf-8"))
    os.kill(record["pid"], signal.SIGKILL)
    killed = time.monotonic()
    code, said = answer(process)
    assert time.monotonic() - killed < 20
    assert (code, said["code"]) == (1, "train-rank-died")
    assert said["error"].startswith(f"rank 1 (process {record['pid']} on ")


def test_ctrl_c_saves_a_checkpoint_and_says_how_to_go_on(desk):
    process = started(desk, "--checkpoint-every", ENDLESS, out="stopped")
    process.send_signal(signal.SIGINT)
    code, said = answer(process)
    assert (code, said["code"]) == (130, "train-stopped")
    newest = CheckpointFolder(desk / "stopped" / "checkpoints").newest()
    assert newest.step == max(losses(desk / "stopped"))
    assert str(newest.path) in said["error"]
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


def test_the_surroundings_are_listed_on_request(desk, monkeypatch, capsys):
    monkeypatch.chdir(desk)
    assert main(["train", "plan2.json", "--device", "cpu", "--lint", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["schema"] == "shardwise.lint/1"
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "nowhere0")
    assert main(["train", "plan2.json", "--device", "cpu", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["code"] == "train-surroundings"

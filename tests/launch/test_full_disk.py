"""``shardwise train`` on disks that really are full: one message that says so, wherever the room ran out."""

import json
import os
import resource
import shutil
import subprocess
import sys

import pytest

from launch.desk import LIMIT_S, lay_out
from launch.small_disk import small_disk
from shardwise.cli.main import main

pytestmark = pytest.mark.runs


def train(desk, *words, limit_bytes=resource.RLIM_INFINITY):
    """Exit code and answer of one process that trains a few steps, with a limit on the size of its files."""
    full = [sys.executable, "-m", "shardwise", "train", "plan1.json", "--device", "cpu", "--data", "corpus.jsonl"]
    environment = {**os.environ, "XDG_CACHE_HOME": str(desk / "cache"), "GLOO_SOCKET_IFNAME": "lo"}
    words = [*full, "--steps", 4, "--json", *words]
    words = [*(["prlimit", f"--fsize={limit_bytes}"] if limit_bytes != resource.RLIM_INFINITY else []), *words]
    done = subprocess.run(
        list(map(str, words)), cwd=desk, env=environment, capture_output=True, text=True, check=False, timeout=LIMIT_S
    )
    return done.returncode, json.loads(done.stdout)


@pytest.mark.parametrize(
    ("size_kib", "written"),
    [
        (12, "prediction.json"),
        pytest.param(28, "output.log", id="no room for a word of the ranks"),  # job.json takes one page or two
        pytest.param(120, ".memory-0000.json", id="no room for the sample of memory"),
    ],
)
def test_a_run_folder_without_room_is_said_to_be_full(tmp_path, size_kib, written):
    with small_disk(tmp_path / "small", size_kib=size_kib) as small:
        code, said = train(lay_out(tmp_path), "--out", small / "run")
    assert (code, said["code"]) == (1, "train-disk-full")
    assert f"disk full: {small / 'run' / written} could not be written" in said["error"]
    assert "are free there" in said["error"]
    assert "make room" in said["fix"]


def test_an_export_without_room_says_what_it_takes_and_leaves_nothing_half(tmp_path):
    with small_disk(tmp_path / "small", size_kib=40) as small:
        code, said = train(lay_out(tmp_path), "--out", tmp_path / "run", "--export", small / "exported")
        assert list(small.iterdir()) == []
    assert (code, said["code"]) == (1, "train-disk-full")
    assert f"disk full: {small / 'exported'} could not be written (Error while serializing" in said["error"]
    assert "40.96 KB are free there, and it takes 140.93 KB" in said["error"]
    assert "--resume with one more of --steps exports then" in said["fix"]


@pytest.mark.skipif(shutil.which("prlimit") is None, reason="sets the limit")
@pytest.mark.parametrize("words", [("--checkpoint-every", 2), ("--export", "exported")], ids=["checkpoint", "export"])
def test_a_limit_on_the_size_of_files_is_the_cause_that_is_said(tmp_path, words):
    """Checkpoints take 210 KB, an export of this model 141."""
    code, said = train(lay_out(tmp_path), "--out", tmp_path / "run", *words, limit_bytes=100_000)
    assert code == 1
    assert said["code"] in ("checkpoint-disk-full", "train-disk-full")
    assert "no file may be larger here than 100,000 bytes (ulimit -f)" in said["error"]
    assert "are free" not in said["error"]
    assert "ulimit -f unlimited" in said["fix"]


@pytest.mark.parametrize("variable", ["XDG_CACHE_HOME", "HOME"])
def test_a_cache_that_cannot_be_written_is_named_before_anything_starts(tmp_path, monkeypatch, capsys, variable):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv(variable, "/dev/null")
    monkeypatch.chdir(lay_out(tmp_path))
    words = ["train", "plan1.json", "--device", "cpu", "--data", "corpus.jsonl", "--out", "run"]
    for more in ([], ["--dry-run"]):
        assert main([*words, *more]) == 2
        said = capsys.readouterr().err
        assert "the tokens of the data cannot be kept in /dev/null/" in said
        assert "/dev/null is no folder [data-cache]" in said
        assert "set XDG_CACHE_HOME to a folder that can be written to" in said
    assert not (tmp_path / "run").exists()

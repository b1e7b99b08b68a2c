"""``shardwise train`` on disks that really are full: one message that says so, wherever the room ran out."""

import json
import os
import subprocess
import sys

import pytest

from launch.desk import lay_out
from launch.small_disk import small_disk


def train(desk, *words):
    """Exit code and answer of one process that trains a few steps."""
    full = [sys.executable, "-m", "shardwise", "train", "plan1.json", "--device", "cpu", "--data", "corpus.jsonl"]
    environment = {**os.environ, "XDG_CACHE_HOME": str(desk / "cache"), "GLOO_SOCKET_IFNAME": "lo"}
    words = [*full, "--steps", 4, "--json", *words]
    done = subprocess.run(
        list(map(str, words)), cwd=desk, env=environment, capture_output=True, text=True, check=False, timeout=180
    )
    return done.returncode, json.loads(done.stdout)


@pytest.mark.parametrize(
    ("size_kib", "written"),
    [
        (8, "prediction.json"),
        pytest.param(16, "output.log", id="no room for a word of the ranks"),
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

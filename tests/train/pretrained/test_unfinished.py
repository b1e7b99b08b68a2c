"""Two exports of one name never come into one folder, and what a killed one left goes away."""

import os

import pytest

from shardwise.errors import CheckpointError
from shardwise.train.pretrained.export import unfinished_export


def write(folder, name, text):
    (folder / name).write_text(text, encoding="utf-8")


def test_exports_of_two_runs_at_once_are_not_mixed(tmp_path):
    with unfinished_export(tmp_path / "out", needed_bytes=1) as first:
        write(first, "1", "first")
        with unfinished_export(tmp_path / "out", needed_bytes=1) as second:
            write(second, "2", "second")
        assert [path.name for path in (tmp_path / "out").iterdir()] == ["2"]
        write(first, "3", "first")
        (tmp_path / "out").rename(tmp_path / "moved")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["1", "3"]


def export_twice(folder):
    with unfinished_export(folder, needed_bytes=1) as first:
        write(first, "1", "first")
        with unfinished_export(folder, needed_bytes=1) as second:
            write(second, "2", "second")


def test_the_later_of_two_exports_takes_nothing_from_the_earlier(tmp_path):
    with pytest.raises(CheckpointError, match="was made by another run meanwhile"):
        export_twice(tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["2"]


def test_what_a_killed_export_left_goes_away(tmp_path):
    pid = os.fork()
    if pid == 0:
        with unfinished_export(tmp_path / "out", needed_bytes=1) as unfinished:
            write(unfinished, "1", "half")
            os._exit(1)
    os.waitpid(pid, 0)
    assert len(list(tmp_path.iterdir())) == 1
    with unfinished_export(tmp_path / "out", needed_bytes=1):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["out"]

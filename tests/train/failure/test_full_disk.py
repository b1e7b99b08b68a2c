"""What counts as a full disk, by whichever writer met it."""

import errno
import os

import pytest
from safetensors import SafetensorError

from shardwise.errors import CheckpointError
from shardwise.train.failure import full_disk
from shardwise.train.failure.classify import classify
from shardwise.train.failure.full_disk import DiskFullError, writing


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        OSError(errno.EDQUOT, "Disk quota exceeded"),
        SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)"),
        RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 1024 vs 918"),
    ],
)
def test_every_writer_is_understood(error, tmp_path):
    assert classify(error) == "disk-full"
    with (
        pytest.raises(DiskFullError, match=r"disk full: .*/model could not be written") as raised,
        writing(tmp_path / "model", needed_bytes=5_000_000),
    ):
        raise error
    assert "and it takes 5.00 MB" in raised.value.message
    assert classify(raised.value) == "disk-full"


LIMIT_BYTES = 4096


@pytest.fixture
def limited(monkeypatch):
    """A limit on the size of files, on a disk with more room than that."""
    monkeypatch.setattr(full_disk.resource, "getrlimit", lambda _: (LIMIT_BYTES, LIMIT_BYTES))


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.EFBIG, "File too large"),
        SafetensorError("Error while serializing: I/O error: File too large (os error 27)"),
        RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 1024 vs 918"),
        None,
    ],
)
def test_a_limit_on_the_size_of_files_is_no_full_disk(error, tmp_path, limited):
    said = full_disk.disk_full_error(tmp_path / "model", error=error)
    assert said.message.startswith(f"file too large: {tmp_path / 'model'} could not be written")
    assert said.message.endswith("no file may be larger here than 4,096 bytes (ulimit -f)")
    assert "ulimit -f unlimited" in said.fix


def test_a_disk_with_less_room_than_the_limit_is_full_by_itself(tmp_path, limited, monkeypatch):
    monkeypatch.setattr(full_disk, "free_bytes", lambda _: LIMIT_BYTES // 2)
    said = full_disk.disk_full_error(tmp_path, error=RuntimeError("unexpected pos 1024 vs 918"))
    assert said.message.endswith("2.05 KB are free there")


def test_a_quota_that_is_used_up_is_said(tmp_path):
    said = full_disk.disk_full_error(tmp_path, error=OSError(errno.EDQUOT, "Disk quota exceeded"))
    assert "the quota of this user is used up" in said.message
    assert "larger quota" in said.fix


def test_other_errors_pass(tmp_path):
    for error in (OSError(errno.EACCES, os.strerror(errno.EACCES)), CheckpointError("is full", code="x", fix="y")):
        with pytest.raises(type(error)) as raised, writing(tmp_path):
            raise error
        assert raised.value is error
        assert classify(error) != "disk-full"

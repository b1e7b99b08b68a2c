"""What counts as a full disk, by whichever writer met it."""

import errno
import os

import pytest
from safetensors import SafetensorError

from shardwise.errors import CheckpointError
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


def test_other_errors_pass(tmp_path):
    for error in (OSError(errno.EACCES, os.strerror(errno.EACCES)), CheckpointError("is full", code="x", fix="y")):
        with pytest.raises(type(error)) as raised, writing(tmp_path):
            raise error
        assert raised.value is error
        assert classify(error) != "disk-full"

"""A write that found no room: known by whoever reports it, and said in one sentence with the path and what is free."""

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from shardwise.errors import ShardwiseError
from shardwise.units import Bytes, format_decimal_bytes

__all__ = ["DiskFullError", "disk_full_error", "free_bytes", "free_text", "is_full_disk", "writing"]

FULL_DISK = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
REASONS = tuple(os.strerror(number).lower() for number in sorted(FULL_DISK))
"""What writers that are not Python's put into their errors: safetensors, Arrow."""
SHORT_WRITE = "unexpected pos"
"""In ``caffe2/serialize/inline_container.cc``: the position in the file is not where what was written would end."""
FIX = "make room where the run and its checkpoints are written, then resume it"


class DiskFullError(ShardwiseError):
    """A file of a run that found no room."""

    exit_code = 1


def is_full_disk(error: BaseException) -> bool:
    """Whether a write found no room, by the error itself: the number of the system's refusal, or its words."""
    if isinstance(error, OSError) and error.errno in FULL_DISK:
        return True
    text = str(error).lower()
    return SHORT_WRITE in text or any(reason in text for reason in REASONS)


@contextmanager
def writing(path: Path, *, needed_bytes: Bytes | None = None, fix: str = FIX) -> Iterator[None]:
    """Around what writes a file or a folder: a full disk then names it; every other error passes.

    Raises:
        DiskFullError: there was no room.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, ShardwiseError) or not is_full_disk(error):
            raise
        full = disk_full_error(path, needed_bytes=needed_bytes, reason=_reason(error))
        raise DiskFullError(full.message, code=full.code, fix=fix) from error


def disk_full_error(path: Path, *, needed_bytes: Bytes | None = None, reason: str = "") -> DiskFullError:
    """The one sentence for a file that found no room.

    Args:
        path: what was written; it need not exist.
        needed_bytes: how long it would have become, where that is known.
        reason: the system's own words.
    """
    needed = f", and it takes {format_decimal_bytes(needed_bytes)}" if needed_bytes is not None else ""
    said = f" ({reason})" if reason else ""
    return DiskFullError(
        f"disk full: {path} could not be written{said}; {free_text(path)}{needed}", code="train-disk-full", fix=FIX
    )


def free_text(path: Path) -> str:
    """How much is free on the disk of a path, in words."""
    return f"{format_decimal_bytes(free_bytes(path))} are free there"


def free_bytes(path: Path) -> Bytes:
    """What a program may still write on the disk of a path, or of the nearest folder above that exists."""
    nearest = next(folder for folder in (path.absolute(), *path.absolute().parents) if folder.exists())
    return shutil.disk_usage(nearest).free


def _reason(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error).partition("\n")[0]

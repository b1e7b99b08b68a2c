"""A write that found no room: on the disk, in a quota, or below a limit on the size of files; said in one sentence.

The sentence names the path and the cause: what is free, that a quota is used up, or how large a file may become.
"""

import errno
import os
import resource
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from shardwise.errors import ShardwiseError
from shardwise.units import Bytes, format_decimal_bytes

__all__ = ["DiskFullError", "disk_full_error", "free_bytes", "free_text", "is_full_disk", "no_room", "writing"]

FULL_DISK = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
REASONS = tuple(os.strerror(number).lower() for number in sorted(FULL_DISK))
"""Words that writers outside Python, such as safetensors and Arrow, put into their errors."""
SHORT_WRITE = "unexpected pos"
"""torch's words for a write that found no room: the file ends before what was written
(``caffe2/serialize/inline_container.cc``)."""
LIMIT_FIX = "raise the limit on the size of files (ulimit -f unlimited), then resume the run"
QUOTA_FIX = "delete files of this user there or ask for a larger quota, then resume the run"
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
        full = disk_full_error(path, needed_bytes=needed_bytes, error=error)
        raise DiskFullError(full.message, code=full.code, fix=fix if full.fix == FIX else full.fix) from error


def disk_full_error(
    path: Path, *, needed_bytes: Bytes | None = None, error: BaseException | None = None
) -> DiskFullError:
    """The one sentence for a file that found no room.

    Args:
        path: what was written; it need not exist.
        needed_bytes: how long it would have become, where that is known.
        error: what the write ended with, where somebody has it.
    """
    needed = f", and it takes {format_decimal_bytes(needed_bytes)}" if needed_bytes is not None else ""
    said = f" ({_reason(error)})" if error is not None else ""
    cause, fix = no_room(path, error)
    head = "file too large" if fix == LIMIT_FIX else "disk full"
    return DiskFullError(f"{head}: {path} could not be written{said}; {cause}{needed}", code="train-disk-full", fix=fix)


def no_room(path: Path, error: BaseException | None = None) -> tuple[str, str]:
    """Why a write found no room, in words, and what to do about it.

    A writer that only saw that its file ended early may have met the limit as well as the disk's end: it was the limit
    where there is one, and the disk would have room for more.
    """
    number, text = getattr(error, "errno", None), str(error).lower()
    has_no_words = error is None or SHORT_WRITE in text
    limit_bytes = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    is_limited = limit_bytes != resource.RLIM_INFINITY and limit_bytes < free_bytes(path)
    if number == errno.EFBIG or os.strerror(errno.EFBIG).lower() in text or (has_no_words and is_limited):
        size = f"{limit_bytes:,} bytes" if limit_bytes != resource.RLIM_INFINITY else "the disk's format allows"
        return f"no file may be larger here than {size} (ulimit -f)", LIMIT_FIX
    if number == errno.EDQUOT or os.strerror(errno.EDQUOT).lower() in text:
        return f"the quota of this user is used up, while {free_text(path)} to others", QUOTA_FIX
    return free_text(path), FIX


def free_text(path: Path) -> str:
    """How much is free on the disk of a path, in words."""
    return f"{format_decimal_bytes(free_bytes(path))} are free there"


def free_bytes(path: Path) -> Bytes:
    """Bytes that a program may still write on the disk of a path, or of the nearest folder above that exists."""
    nearest = next(folder for folder in (path.absolute(), *path.absolute().parents) if folder.exists())
    return shutil.disk_usage(nearest).free


def _reason(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error).partition("\n")[0]

"""Compares the tensors of a checkpoint with the checksums that ``torch.save`` puts beside them.

A ``.distcp`` file is a row of such archives, one a tensor, and ``.metadata`` says where each begins. torch itself does
not compare checksums when it reads (miniz is built without). Saves write nothing more and cost no more. A resume reads
every file once: each rank reads the files of its own number, which are in the system's cache when the rank loads them.
"""

import io
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO
from zipfile import ZIP_STORED, BadZipFile, ZipFile

__all__ = ["Damage", "first_damage"]

MAX_RECORDS = 64
"""Most records of an archive. torch writes fewer than ten, uncompressed, so reading all is reading the file once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """A file that is not as it was written."""

    file: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Archive:
    """Where the archive of a tensor lies in its file."""

    tensor: str
    start_bytes: int
    size_bytes: int


class Window(io.RawIOBase):
    """A stretch of a file, as a file."""

    def __init__(self, file: BinaryIO, archive: Archive) -> None:
        self._file, self._archive, self._position = file, archive, 0

    def readable(self) -> bool:
        """The stretch can be read."""
        return True

    def seekable(self) -> bool:
        """The stretch can be read in any order."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to a place counted from the beginning of the stretch, from here, or from its end."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._archive.size_bytes}[whence]
        self._position = max(0, base + offset)
        return self._position

    def tell(self) -> int:
        """The place that is read next."""
        return self._position

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer as far as the stretch goes."""
        view = memoryview(buffer)
        left_bytes = max(0, self._archive.size_bytes - self._position)
        self._file.seek(self._archive.start_bytes + self._position)
        num_read = self._file.readinto(view[: min(len(view), left_bytes)])  # type: ignore[attr-defined]
        self._position += num_read
        return int(num_read)


def first_damage(folder: Path, storage: Mapping[Any, Any], *, rank: int, world_size: int) -> Damage | None:
    """The first damaged file among those that fall to a rank.

    Args:
        folder: of a checkpoint.
        storage: ``storage_data`` of its metadata.
        rank: of this process.
        world_size: how many processes share the files.
    """
    archives: dict[str, list[Archive]] = defaultdict(list)
    for index, place in storage.items():
        archive = Archive(tensor=index.fqn, start_bytes=place.offset, size_bytes=place.length)
        archives[place.relative_path].append(archive)
    for name in sorted(archives):
        if _writer(name) % world_size != rank:
            continue
        damaged = _damaged_tensor(folder / name, archives[name])
        if damaged is not None:
            return Damage(file=name, reason=f"holds other bytes of {damaged} than were written")
    return None


def _writer(name: str) -> int:
    """The rank that wrote ``__3_0.distcp``."""
    digits = name.removeprefix("__").partition("_")[0]
    return int(digits) if digits.isdigit() else 0


def _damaged_tensor(path: Path, archives: list[Archive]) -> str | None:
    with path.open("rb") as file:
        for archive in sorted(archives, key=lambda archive: archive.start_bytes):
            if not _is_as_written(Window(file, archive)):
                return archive.tensor
    return None


def _is_as_written(window: Window) -> bool:
    """Whether every record of the archive has its checksum."""
    try:
        with ZipFile(io.BufferedReader(window, 1 << 20)) as records:
            listed = records.infolist()
            is_plain = len(listed) <= MAX_RECORDS and all(record.compress_type == ZIP_STORED for record in listed)
            return is_plain and records.testzip() is None
    except (BadZipFile, OSError, ValueError, NotImplementedError, RuntimeError, EOFError):
        return False

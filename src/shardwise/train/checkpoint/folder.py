"""Which checkpoints exist: a folder takes its final name only when everything in it is on disk.

A save writes into ``unfinished-step-00000020``. When every rank has written and flushed its files, ``COMPLETE`` lists
them with their sizes, the folder is renamed to ``step-00000020``, and ``latest`` is replaced to name it. Each of these
is one atomic operation on the file system, so a run that dies at any moment leaves the checkpoint before, whole.
"""

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

from shardwise.errors import CheckpointError

__all__ = ["Checkpoint", "CheckpointFolder", "damaged_error", "find_checkpoint", "flush_to_disk"]

COMPLETE = "COMPLETE"
LATEST = "latest"
METADATA = ".metadata"
TENSORS = ".distcp"
"""Files of tensors hold a checksum of every tensor in themselves; of the small others ``COMPLETE`` holds one."""
PREFIX = "step-"
UNFINISHED = "unfinished-"
DELETED = "deleted-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """One complete checkpoint."""

    path: Path
    step: int

    @property
    def size_bytes(self) -> int:
        """Bytes of all its files."""
        return sum(_listed_bytes(self.path).values())


class CheckpointFolder:
    """The checkpoints of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def complete(self) -> tuple[Checkpoint, ...]:
        """Every checkpoint whose files are all there with the sizes they were written with, oldest first."""
        if not self.path.is_dir():
            return ()
        found = [
            Checkpoint(path=path, step=_step_of(path))
            for path in self.path.glob(f"{PREFIX}*")
            if path.is_dir() and path.name.removeprefix(PREFIX).isdigit() and is_complete(path)
        ]
        return tuple(sorted(found, key=lambda checkpoint: checkpoint.step))

    def newest(self) -> Checkpoint | None:
        """The complete checkpoint of the highest step."""
        return next(reversed(self.complete()), None)

    def begin(self, step: int) -> Path:
        """An empty folder to save into; what an interrupted save of the same step left there is thrown away."""
        path = self.path / f"{UNFINISHED}{_name(step)}"
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(parents=True)
        return path

    def publish(self, step: int) -> Checkpoint:
        """Make what was saved since :meth:`begin` the newest checkpoint; returns when that would survive a power cut.

        Raises:
            CheckpointError: torch wrote no ``.metadata``, so the save did not end.
        """
        unfinished, path = self.path / f"{UNFINISHED}{_name(step)}", self.path / _name(step)
        if not (unfinished / METADATA).is_file():
            raise CheckpointError(
                f"the save of step {step} did not end: {unfinished / METADATA} is missing",
                code="checkpoint-write",
                fix="look in the logs of the ranks for the first error, then save again",
            )
        files = {file.name: file.stat().st_size for file in sorted(unfinished.iterdir())}
        for name in files:
            flush_to_disk(unfinished / name)
        sums = {name: crc32((unfinished / name).read_bytes()) for name in files if not name.endswith(TENSORS)}
        listed = {"step": step, "files_bytes": files, "files_crc32": sums}
        _write_durably(unfinished / COMPLETE, json.dumps(listed, indent=1))
        flush_to_disk(unfinished)
        if path.exists():
            self._delete(path)
        unfinished.rename(path)
        _write_durably(self.path / LATEST, f"{path.name}\n")
        flush_to_disk(self.path)
        return Checkpoint(path=path, step=step)

    def prune(self, num_kept: int) -> tuple[Checkpoint, ...]:
        """Delete complete checkpoints but the newest ``num_kept`` (at least one), and unfinished ones older than they.

        Call it only after a newer checkpoint was published: the last good one is never deleted.
        """
        complete = self.complete()
        surplus = complete[: max(0, len(complete) - max(1, num_kept))]
        for checkpoint in surplus:
            self._delete(checkpoint.path)
        if complete:
            for path in self.path.glob(f"{UNFINISHED}{PREFIX}*"):
                if _step_of(path) < complete[-1].step:
                    shutil.rmtree(path, ignore_errors=True)
        return surplus

    def _delete(self, path: Path) -> None:
        """Rename first, so that a deletion cut short leaves nothing that looks like a checkpoint."""
        doomed = path.with_name(f"{DELETED}{path.name}")
        shutil.rmtree(doomed, ignore_errors=True)
        path.rename(doomed)
        shutil.rmtree(doomed, ignore_errors=True)


def is_complete(path: Path) -> bool:
    """Whether a folder says it is complete and its files have the sizes it says."""
    sizes = _listed_bytes(path)
    return METADATA in sizes and all(
        (path / name).is_file() and (path / name).stat().st_size == size for name, size in sizes.items()
    )


def find_checkpoint(path: Path) -> Checkpoint:
    """The checkpoint a user means: one by its own path, or the newest of a folder or of a run.

    An older one never takes the place of a damaged one by itself: whoever resumes is told, and names it.

    Raises:
        CheckpointError: there is none, and the message says what there is instead; or it is damaged.
    """
    if _is_published(path):
        return _undamaged(path)
    for folder in (path, path / "checkpoints"):
        published = [found for found in folder.glob(f"{PREFIX}*") if _is_published(found)]
        if published:
            return _undamaged(max(published, key=_step_of))
    raise CheckpointError(
        f"there is no complete checkpoint in {path}{_what_is_there(path)}",
        code="checkpoint-none",
        fix="name a run folder, a folder of checkpoints, or one step-… folder that has a file COMPLETE",
    )


def damaged_error(path: Path, file: str, reason: str) -> CheckpointError:
    """What to say of a checkpoint with a file that is not as it was written, and what to go on from instead."""
    step = _step_of(path)
    older = [found for found in CheckpointFolder(path.parent).complete() if found.step < step]
    fix = (
        f"go on from step {older[-1].step}: --resume {older[-1].path}"
        if older
        else "start again: no older one is there"
    )
    return CheckpointError(
        f"the checkpoint of step {step} is damaged: {path / file} {reason}",
        code="checkpoint-damaged",
        fix=f"copy the file again if there is another copy, or {fix}",
    )


def _is_published(path: Path) -> bool:
    return path.name.startswith(PREFIX) and path.name.removeprefix(PREFIX).isdigit() and path.is_dir()


def _undamaged(path: Path) -> Checkpoint:
    damage = next(_damages(path), None)
    if damage is not None:
        raise damaged_error(path, *damage)
    return Checkpoint(path=path, step=_step_of(path))


def _damages(path: Path) -> Iterator[tuple[str, str]]:
    """Files that are not as they were written, and how: by their sizes, the small ones by their content."""
    sizes, sums = _listed_bytes(path), _listed(path, "files_crc32")
    if METADATA not in sizes:
        yield COMPLETE, "is missing or cannot be read"
    for name, size in sizes.items():
        if not (path / name).is_file():
            yield name, "is missing"
        elif (found := (path / name).stat().st_size) != size:
            yield name, f"has {found:,} bytes and was written with {size:,}"
        elif name in sums and crc32((path / name).read_bytes()) != sums[name]:
            yield name, "holds other bytes than were written"


def flush_to_disk(path: Path) -> None:
    """Return when the file, or the list of names of the folder, is on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _what_is_there(path: Path) -> str:
    if not path.exists():
        return ": it does not exist"
    folders = [folder for root in (path, path / "checkpoints") if root.is_dir() for folder in root.iterdir()]
    unfinished = sorted(folder.name for folder in folders if folder.name.startswith((UNFINISHED, DELETED)))
    return f": {', '.join(unfinished)} never became complete" if unfinished else ""


def _listed_bytes(path: Path) -> dict[str, int]:
    """Names and sizes that ``COMPLETE`` lists; none without it."""
    return _listed(path, "files_bytes")


def _listed(path: Path, field: str) -> dict[str, int]:
    try:
        listed = json.loads((path / COMPLETE).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    found = listed.get(field) if isinstance(listed, dict) else None
    return found if isinstance(found, dict) and all(isinstance(value, int) for value in found.values()) else {}


def _write_durably(path: Path, text: str) -> None:
    unfinished = path.with_name(f".{path.name}.unfinished")
    unfinished.write_text(text, encoding="utf-8")
    flush_to_disk(unfinished)
    unfinished.replace(path)


def _name(step: int) -> str:
    return f"{PREFIX}{step:08d}"


def _step_of(path: Path) -> int:
    digits = path.name.rpartition(PREFIX)[2]
    return int(digits) if digits.isdigit() else 0

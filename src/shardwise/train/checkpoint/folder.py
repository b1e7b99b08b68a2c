"""Which checkpoints exist: a folder takes its final name only when everything in it is on disk.

A save writes into ``unfinished-LIFE-step-00000020``. When every rank has written and flushed its files, ``COMPLETE``
lists them with their sizes, the folder is renamed to ``step-00000020``, and ``latest`` is replaced to name it. Each of
these is one atomic operation on the file system, so a run that dies at any moment leaves the checkpoint before, whole.

``latest`` is what the run goes on from, not the highest step: a life that resumes an older checkpoint begins a branch.
It makes ``latest`` name what it resumed and then moves the checkpoints that it leaves behind into ``abandoned-LIFE``. A
life that dies in between leaves the rest of them to the next one, which follows ``latest``.
"""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

from shardwise.errors import CheckpointError
from shardwise.train.checkpoint.lineage import Lineage, lineage_of, number_of

__all__ = ["Checkpoint", "CheckpointFolder", "damaged_error", "find_checkpoint", "flush_to_disk"]

COMPLETE = "COMPLETE"
LATEST = "latest"
"""A file of two lines: the newest checkpoint relative to the folder, empty without one; the life that wrote it."""
METADATA = ".metadata"
TENSORS = ".distcp"
"""Files of tensors hold a checksum of every tensor in themselves; of the small others ``COMPLETE`` holds one."""
BEST = "best"
"""A file that names the checkpoint with the lowest validation loss, where one is kept."""
PREFIX = "step-"
UNFINISHED = "unfinished-"
DELETED = "deleted-"
ABANDONED = "abandoned-"


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
    """The checkpoints of one run, as one of its lives sees them."""

    def __init__(self, path: Path, lineage: Lineage | None = None) -> None:
        self.path = path
        self.lineage = lineage or Lineage()

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
        """The complete checkpoint that the run goes on from; where it is damaged, that of the highest step before."""
        path = _newest_published(self.path)
        if path is None:
            return None
        if is_complete(path):
            return Checkpoint(path=path, step=_step_of(path))
        return next((found for found in reversed(self.complete()) if found.step < _step_of(path)), None)

    def abandoned(self) -> tuple[Path, ...]:
        """Checkpoints that did not lead to this life, oldest first."""
        found = [path for path in self.path.glob(f"{PREFIX}*") if _is_published(path)]
        return tuple(sorted((path for path in found if not self._is_own(path)), key=_step_of))

    @property
    def abandoned_path(self) -> Path:
        """The folder for checkpoints that this life leaves behind."""
        return self.path / f"{ABANDONED}{self.lineage.life}"

    def follow(self, resumed: Path | None) -> tuple[Path, ...]:
        """Begin this life: ``latest`` names what it goes on from, and what did not lead here is set apart.

        What earlier lives did not finish is thrown away, which also takes it from one that only stood still.

        Args:
            resumed: the checkpoint that was loaded, here or elsewhere; ``None`` for a run from the beginning.

        Returns:
            Where the abandoned checkpoints are now.
        """
        abandoned = self.abandoned()
        is_here = resumed is not None and self.path.resolve() in resumed.resolve().parents
        if not is_here and not abandoned and not (self.path / LATEST).exists():
            return ()
        target = str(resumed.resolve().relative_to(self.path.resolve())) if resumed is not None and is_here else ""
        self._write_latest(target)
        for path in self.path.glob(f"{UNFINISHED}*{PREFIX}*"):
            shutil.rmtree(path, ignore_errors=True)
        return tuple(self._set_apart(path) for path in abandoned)

    def begin(self, step: int) -> Path:
        """An empty folder to save into; what an interrupted save of the same step left there is thrown away."""
        path = self._unfinished(step)
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(parents=True)
        return path

    def publish(self, step: int, *, require_held: Callable[[], None] = lambda: None) -> Checkpoint:
        """Make what was saved since :meth:`begin` the newest checkpoint; returns when that would survive a power cut.

        Args:
            step: the step that was saved.
            require_held: raises when the folder has come to belong to another run; asked once all is on disk, which
                takes the longest.

        Raises:
            CheckpointError: torch wrote no ``.metadata``, so the save did not end.
        """
        unfinished, path = self._unfinished(step), self.path / _name(step)
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
        require_held()
        if path.exists():
            self._delete(path) if self._is_own(path) else self._set_apart(path)
        unfinished.rename(path)
        self._write_latest(path.name)
        return Checkpoint(path=path, step=step)

    def best(self) -> Checkpoint | None:
        """The complete checkpoint that :meth:`mark_best` named."""
        try:
            path = self.path / (self.path / BEST).read_text(encoding="utf-8").strip()
        except (OSError, ValueError):
            return None
        return Checkpoint(path=path, step=_step_of(path)) if _is_published(path) and is_complete(path) else None

    def mark_best(self, step: int) -> None:
        """Name the checkpoint of a step as the best; where that step has none, no checkpoint is named."""
        if (self.path / _name(step)).is_dir():
            _write_durably(self.path / BEST, f"{_name(step)}\n")
        else:
            (self.path / BEST).unlink(missing_ok=True)

    def prune(self, num_kept: int) -> tuple[Checkpoint, ...]:
        """Delete this life's and its ancestors' checkpoints except the best and the newest ``num_kept`` (at least one).

        Older unfinished ones go, too. Call it only after a newer checkpoint was published: the last good one is kept.
        """
        complete = tuple(found for found in self.complete() if self._is_own(found.path))
        best = self.best()
        surplus = tuple(found for found in complete[: max(0, len(complete) - max(1, num_kept))] if found != best)
        for checkpoint in surplus:
            self._delete(checkpoint.path)
        if complete:
            for path in self.path.glob(f"{UNFINISHED}*{PREFIX}*"):
                if _step_of(path) < complete[-1].step:
                    shutil.rmtree(path, ignore_errors=True)
        return surplus

    def _is_own(self, path: Path) -> bool:
        """Whether a checkpoint is one of those that led to this life."""
        return self.lineage.holds(lineage_of(path).life, _step_of(path))

    def _unfinished(self, step: int) -> Path:
        """A folder of this life alone: what another one writes at the same step never comes into it."""
        life = f"{self.lineage.life}-" if self.lineage.life else ""
        return self.path / f"{UNFINISHED}{life}{_name(step)}"

    def _write_latest(self, target: str) -> None:
        life = f"{self.lineage.life}\n" if self.lineage.life else ""
        _write_durably(self.path / LATEST, f"{target}\n{life}")
        flush_to_disk(self.path)

    def _set_apart(self, path: Path) -> Path:
        self.abandoned_path.mkdir(exist_ok=True)
        return path.rename(self.abandoned_path / path.name)

    def _delete(self, path: Path) -> None:
        """Rename first, so that a deletion cut short leaves nothing that looks like a checkpoint."""
        doomed = path.with_name(f"{DELETED}{path.name}")
        shutil.rmtree(doomed, ignore_errors=True)
        path.rename(doomed)
        shutil.rmtree(doomed, ignore_errors=True)


def is_complete(path: Path) -> bool:
    """Whether a folder is marked as complete and its files have the sizes that the mark lists."""
    sizes = _listed_bytes(path)
    return METADATA in sizes and all(
        (path / name).is_file() and (path / name).stat().st_size == size for name, size in sizes.items()
    )


def find_checkpoint(path: Path) -> Checkpoint:
    """The checkpoint a user means: one by its own path, or the one that ``latest`` names in a folder or a run.

    An older one never takes the place of a damaged one by itself: whoever resumes is told, and names it.

    Raises:
        CheckpointError: there is none, and the message says what there is instead; or it is damaged.
    """
    if _is_published(path):
        return _undamaged(path)
    for folder in (path, path / "checkpoints"):
        published = _newest_published(folder)
        if published is not None:
            return _undamaged(published)
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


def _newest_published(folder: Path) -> Path | None:
    """The checkpoint that ``latest`` names, or one published by a writer that died before it wrote ``latest``; the
    highest step in folders that have no ``latest``."""
    published = [found for found in folder.glob(f"{PREFIX}*") if _is_published(found)]
    try:
        lines = [*(folder / LATEST).read_text(encoding="utf-8").split("\n"), ""]
    except (OSError, ValueError):
        return max(published, key=_step_of, default=None)
    named, number = folder / lines[0], number_of(lines[1])
    step = _step_of(named) if lines[0] else 0
    unnamed = [found for found in published if _step_of(found) > step and _is_after(found, folder / LATEST, number)]
    if unnamed:
        return max(unnamed, key=lambda found: (lineage_of(found).number, _step_of(found)))
    return named if lines[0] else None


def _is_after(path: Path, latest: Path, number: int) -> bool:
    """Whether a checkpoint was published after ``latest`` was written: by the life that wrote it, or a later one.

    Versions before lives are told apart by times: a rollback of theirs left ``latest`` behind higher steps, and newer.
    """
    own = lineage_of(path).number
    if own > 0 or number > 0:
        return own >= number
    try:
        return (path / COMPLETE).stat().st_mtime_ns >= latest.stat().st_mtime_ns
    except OSError:
        return False


def _is_published(path: Path) -> bool:
    return path.name.startswith(PREFIX) and path.name.removeprefix(PREFIX).isdigit() and path.is_dir()


def _undamaged(path: Path) -> Checkpoint:
    damage = next(_damages(path), None) if path.is_dir() else ("", "is missing, and latest names it")
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
    abandoned = sorted(str(folder) for folder in folders if folder.name.startswith(ABANDONED))
    said = [f"{', '.join(unfinished)} never became complete"] if unfinished else []
    said += [f"what an earlier life of the run saved is in {', '.join(abandoned)}"] if abandoned else []
    return f": {'; '.join(said)}" if said else ""


def _listed_bytes(path: Path) -> dict[str, int]:
    """Names and sizes that ``COMPLETE`` lists; none without it."""
    return _listed(path, "files_bytes")


def _listed(path: Path, field: str) -> dict[str, int]:
    try:
        listed = json.loads((path / COMPLETE).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    found = listed.get(field) if isinstance(listed, dict) else None
    if not isinstance(found, dict) or any(type(number) is not int for number in found.values()):
        return {}
    return found


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

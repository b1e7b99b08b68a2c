"""One run in one folder: who holds a run folder, and how a run notices that it lost it.

``lives/00000003.json`` says who holds the folder in its third life: the life's name, host, process and lineage. The
file is made whole and for one taker alone (a hard link), is locked by the launcher and rank 0 as long as they live, and
has its time set every few seconds. ``00000003.ended`` beside it says that the life came to its end. A run that stood
still looks at the numbers when it wakes: a higher one means that the folder belongs to somebody else.

Locks tell for certain on one host. Between hosts, and where a file system has no locks, the sign of life counts: its
age is the difference of two times that the same file system set, so clocks need not agree.
"""

import fcntl
import json
import os
import secrets
import socket
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Literal

from shardwise.errors import ShardwiseError
from shardwise.train.checkpoint.folder import find_checkpoint
from shardwise.train.checkpoint.lineage import Lineage, lineage_from_json, lineage_of, number_of
from shardwise.train.failure.record import is_alive
from shardwise.train.job import Job

__all__ = [
    "LIFE_VARIABLE",
    "LIVES",
    "Lease",
    "LeaseError",
    "LostFolderError",
    "is_held",
    "join",
    "require_free",
    "seen",
    "take",
]

LIVES = "lives"
LIFE_VARIABLE = "SHARDWISE_LIFE"
"""The variable in which a launcher that holds the folders tells its ranks the name of the life."""
BEAT_S = 5.0
"""Seconds between two signs of life."""
DEAD_AFTER_S = 60.0
"""Seconds without a sign of life after which a holder counts as dead, where nothing tells for certain."""
UNNAMED = "none"
"""The run id that torchrun gives where nobody named one: other runs have it too."""
NUM_ATTEMPTS = 5
"""How often something is tried that other processes may do at the same moment."""

SAID = {
    **{"life": str, "host": str, "machine": str, "processes": str, "run_id": str},
    **{"pid": int, "began_s": float, "is_locked": bool},
}
"""The fields in the file of a life that say who holds the folder, and their types."""

LockState = Literal["free", "held", "unknown"]


class LeaseError(ShardwiseError):
    """A folder that another run holds."""


class LostFolderError(ShardwiseError):
    """A folder that is this run's no more."""

    exit_code = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Who holds a folder, as its newest life says."""

    folder: Path
    index: int
    """The number of the life in this folder, from 1."""
    life: str = ""
    host: str = "an unknown host"
    machine: str = ""
    """Which running system it is: the number that Linux draws at every start."""
    processes: str = ""
    """The namespace in which ``pid`` counts: a container has one of its own."""
    pid: int = 0
    began_s: float = 0.0
    run_id: str = ""
    """The id that torchrun gives all processes of a run on many nodes; empty on one machine."""
    is_locked: bool = False
    """Whether the file system took its lock."""

    @property
    def path(self) -> Path:
        """The file of this life."""
        return _life_path(self.folder, self.index)

    @property
    def said(self) -> str:
        """Host, process and beginning, in words."""
        began = datetime.fromtimestamp(self.began_s).astimezone().strftime("%Y-%m-%d %H:%M:%S")
        return f"process {self.pid} on {self.host}, since {began}"


@dataclass(slots=True, kw_only=True)
class Lease:
    """The folders of one run, held by this process or by the one that started it."""

    folders: tuple[Path, ...]
    lineage: Lineage
    is_owner: bool = True
    """Whether this process ends the life; other processes only keep it alive, or look whether it is lost."""
    locks: list[int] = field(default_factory=list)
    beat_s: float = float("-inf")

    def look(self) -> LostFolderError | None:
        """Why a folder is this run's no more, if it is not; gives a sign of life when it is time to.

        A thread beside the training calls it: it lists the lives of each folder, and sets a time every few seconds.
        """
        lost = next((lost for folder in self.folders if (lost := self._lost(folder)) is not None), None)
        now_s = time.monotonic()
        if lost is None and self.locks and now_s - self.beat_s >= BEAT_S:
            self.beat_s = now_s
            for folder in self.folders:
                with suppress(OSError):
                    os.utime(_life_path(folder, self.lineage.number))
        return lost

    def require_held(self) -> None:
        """Return when the folders are still this run's.

        Raises:
            LostFolderError: another run took one over, or it was deleted.
        """
        lost = self.look()
        if lost is not None:
            raise lost

    def release(self) -> None:
        """Say that the life came to its end; writes nothing where another one began or the folder is gone."""
        for folder in self.folders if self.is_owner else ():
            if self._lost(folder) is None:
                with suppress(OSError):
                    _life_path(folder, self.lineage.number).with_suffix(".ended").touch()
        for descriptor in self.locks:
            os.close(descriptor)
        self.locks.clear()

    def _lost(self, folder: Path) -> LostFolderError | None:
        number = self.lineage.number
        try:
            newest, is_there = _newest_number(folder), _life_path(folder, number).exists()
        except OSError:  # a file system that does not answer for a moment says nothing of the folder
            return None
        if newest > number:
            holder = _newest(folder)
            return LostFolderError(
                f"another run took {folder} over while this one stood still"
                f"{f' ({holder.said})' if holder else ''}: nothing more of this one is written there",
                code="train-folder-lost",
                fix="let the other run go on, or stop it and resume the run",
            )
        if not is_there:
            return LostFolderError(
                f"the folder {folder} was deleted or moved while the run was writing into it",
                code="train-folder-gone",
                fix="start again, or bring the folder back and resume the run",
            )
        return None


def folders_of(job: Job) -> tuple[Path, ...]:
    """Folders that a run writes into while it lasts: the run folder, and the checkpoints' folder if it lies elsewhere.

    Checkpoints in the run folder of another run are that run's.
    """
    found = [job.folder]
    if job.checkpoint.folder:
        states = Path(job.checkpoint.folder)
        if states.parent != job.folder:
            found.append(states.parent if (states.parent / LIVES).is_dir() else states)
        if (states / LIVES).is_dir():
            found.append(states)
    return tuple(dict.fromkeys(found))


def require_free(job: Job, *, run_id: str = "") -> None:
    """Return when no run that lives holds a folder of this one.

    Args:
        job: what will run.
        run_id: as torchrun gives it to all nodes, which find their own run as the holder once rank 0 has begun.

    Raises:
        LeaseError: one does; the message says who.
    """
    for folder in folders_of(job):
        _require_free(folder, run_id=run_id)


def is_held(folder: Path) -> bool:
    """Whether a run that lives holds a folder."""
    try:
        _require_free(folder)
    except LeaseError:
        return True
    return False


def take(job: Job, *, run_id: str = "", is_restart: bool = False) -> Lease:
    """Begin a life in the folders of a job; they are made where they are not there.

    Args:
        job: what will run.
        run_id: as torchrun gives it to all nodes.
        is_restart: whether torchrun started the ranks again, so that a life of the same ``run_id`` is over.

    Raises:
        LeaseError: a run that lives holds one.
    """
    folders = folders_of(job)
    own = run_id if is_restart and run_id != UNNAMED else ""
    for _ in range(NUM_ATTEMPTS):
        judged = [_require_free(folder, run_id=own) for folder in folders]
        lease = Lease(folders=folders, lineage=_lineage(job, 1 + max(judged)))
        if _claimed(lease, judged, run_id):
            return lease
    raise LeaseError(
        f"other runs begin in {folders[0]} at the same moment",
        code="train-folder-held",
        fix="start one run in a folder, the others with another --out",
    )


def join(job: Job, life: str) -> Lease:
    """The lease that a launcher took, kept by this process as well: it ends when both have."""
    lease = seen(job, life)
    if lease is None:
        raise LeaseError(
            f"{job.folder} is not held by the run that began this process",
            code="train-folder-held",
            fix="start the run again with shardwise train",
        )
    for folder in lease.folders:
        path = _life_path(folder, lease.lineage.number)
        path.with_suffix(f".{os.getpid()}").touch()
        lease.locks.append(_shared_lock(path)[0])
    return lease


def seen(job: Job, life: str) -> Lease | None:
    """A life's lease that another process holds, for this process to look at; ``None`` where there is no such life."""
    folders, number = folders_of(job), number_of(life)
    holder = _newest(folders[0])
    if holder is None or holder.life != life:
        return None
    found = json.loads(_life_path(folders[0], number).read_text(encoding="utf-8"))
    return Lease(folders=folders, lineage=lineage_from_json(found["lineage"]), is_owner=False)


def _lineage(job: Job, number: int) -> Lineage:
    life = f"{number}-{secrets.token_hex(3)}"
    if not job.checkpoint.resume_from:
        return Lineage(life=life)
    checkpoint = find_checkpoint(Path(job.checkpoint.resume_from))
    return lineage_of(checkpoint.path).child(life, step=checkpoint.step)


def _claimed(lease: Lease, judged: Sequence[int], run_id: str) -> bool:
    """Whether this life is the next in every folder; where another began meanwhile, nothing of this life is left."""
    number = lease.lineage.number
    for folder, last in zip(lease.folders, judged, strict=True):
        descriptor = _claim(folder, lease.lineage, run_id)
        if descriptor is not None:
            lease.locks.append(descriptor)
        if descriptor is None or any(last < other != number for other in _numbers(folder)):
            for taken in lease.folders[: len(lease.locks)]:
                _life_path(taken, number).unlink(missing_ok=True)
            for other in lease.locks:
                os.close(other)
            return False
    return True


def _claim(folder: Path, lineage: Lineage, run_id: str) -> int | None:
    """A descriptor that keeps the lock of a new life; the file is locked before other processes can see it."""
    path = _life_path(folder, lineage.number)
    path.parent.mkdir(parents=True, exist_ok=True)
    unseen = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    unseen.touch()
    try:
        descriptor, is_locked = _shared_lock(unseen)
        document = {
            **{"life": lineage.life, "host": socket.gethostname(), "machine": _machine(), "processes": _processes()},
            **{"pid": os.getpid(), "began_s": time.time(), "is_locked": is_locked},
            **{"run_id": run_id, "lineage": lineage.to_json()},
        }
        unseen.write_text(json.dumps(document) + "\n", encoding="utf-8")
        if not _linked(unseen, path):
            os.close(descriptor)
            return None
    finally:
        unseen.unlink(missing_ok=True)
    return descriptor


def _linked(unseen: Path, path: Path) -> bool:
    """Give a file a second name unless something has it; a file system without links gets a copy, without the lock."""
    try:
        os.link(unseen, path)
    except FileExistsError:
        return False
    except OSError:
        return _copied(unseen, path)
    return True


def _copied(unseen: Path, path: Path) -> bool:
    document = {**json.loads(unseen.read_text(encoding="utf-8")), "is_locked": False}
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(json.dumps(document) + "\n")
    except FileExistsError:
        return False
    return True


def _shared_lock(path: Path) -> tuple[int, bool]:
    """A descriptor of the file, and whether its lock was taken beside those of other processes of the same run."""
    descriptor = os.open(path, os.O_RDWR)
    for _ in range(NUM_ATTEMPTS):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:  # somebody looks whether it is free, for a moment
            time.sleep(0.01)
        except OSError:
            break
        else:
            return descriptor, True
    return descriptor, False


def _require_free(folder: Path, *, run_id: str = "") -> int:
    """The number of the newest life, which is over; lives that begin later are judged by themselves."""
    holder = _newest(folder)
    if holder is None:
        return 0
    if holder.path.with_suffix(".ended").exists() or (run_id and holder.run_id == run_id):
        return holder.index
    silent_s = _age_s(holder.path)
    if _is_dead(holder, silent_s):
        return holder.index
    raise LeaseError(
        f"the folder {folder} is held by another run ({holder.said}), which gave a sign of life "
        f"{max(0.0, silent_s):.0f} s ago",
        code="train-folder-held",
        fix=f"give another --out, or stop that run (kill {holder.pid} on {holder.host}); a folder whose run is dead is "
        f"taken over by itself, at the latest {DEAD_AFTER_S:.0f} s after the last sign of life",
    )


def _is_dead(holder: Holder, silent_s: float) -> bool:
    """Whether a run is dead: by its lock or processes on this machine, else after a time without a sign of life."""
    lock = _lock_state(holder.path)
    if holder.machine != _machine():
        return silent_s > DEAD_AFTER_S
    if lock == "held":
        return False
    is_seen = holder.processes == _processes()
    is_gone = is_seen and not any(map(is_alive, _pids(holder)))
    return (lock == "free" and holder.is_locked) or is_gone or silent_s > DEAD_AFTER_S


def _lock_state(path: Path) -> LockState:
    try:
        descriptor = os.open(path, os.O_RDWR)
    except OSError:
        return "unknown"
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return "held"
    except OSError:
        return "unknown"
    finally:
        os.close(descriptor)
    return "free"


def _age_s(path: Path) -> float:
    """Seconds since the last sign of life by the clock of the file system, which sets the time of a file made now."""
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".now-") as now:
            return Path(now.name).stat().st_mtime - path.stat().st_mtime
    except OSError:
        return 0.0


def _pids(holder: Holder) -> tuple[int, ...]:
    """Processes that kept a life: who began it, and rank 0 where a launcher did."""
    kept = (path.suffix[1:] for path in holder.path.parent.glob(f"{holder.path.stem}.*"))
    return (holder.pid, *(int(digits) for digits in kept if digits.isdecimal()))


def _numbers(folder: Path) -> list[int]:
    """The numbers of the lives that a folder had."""
    return [int(path.stem) for path in (folder / LIVES).glob("*.json") if path.stem.isdecimal()]


def _newest_number(folder: Path) -> int:
    return max(_numbers(folder), default=0)


def _newest(folder: Path) -> Holder | None:
    """The newest life; one that cannot be read says nothing but its number."""
    number = _newest_number(folder)
    if number == 0:
        return None
    holder = Holder(folder=folder, index=number)
    with suppress(OSError, ValueError, TypeError, KeyError):
        found = json.loads(_life_path(folder, number).read_text(encoding="utf-8"))
        known = {name: kind(found[name]) for name, kind in SAID.items()}
        holder = Holder(folder=folder, index=number, **known)
    return holder


def _life_path(folder: Path, number: int) -> Path:
    return folder / LIVES / f"{number:08d}.json"


def _machine() -> str:
    """Equal for processes of one running system; the name of the host where it says nothing of itself."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
    return socket.gethostname()


def _processes() -> str:
    with suppress(OSError):
        return str(Path("/proc/self/ns/pid").readlink())
    return ""

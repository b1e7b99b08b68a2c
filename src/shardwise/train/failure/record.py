"""What ranks write into the run folder about themselves: that they live, how far they are, and why they stopped.

``ranks/rank-0003.json`` exists while a rank lives and says at the end that it ended well; ``failures/rank-0003.json``
says why it did not. Files, because a process group is of no use once a member of it is gone.
"""

import json
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

__all__ = [
    "FailureKind",
    "FailureRecord",
    "RankRecord",
    "clear_records",
    "failures_of",
    "forget_failure",
    "is_alive",
    "is_stopped",
    "keep_room",
    "lost_keeper_of",
    "lost_ranks",
    "ranks_of",
    "write_record",
]

FailureKind = Literal[
    "out-of-memory", "no-thread", "loss", "disk-full", "refused", "exception", "hang", "peer-lost", "stopped"
]
FAILURES = "failures"
RANKS = "ranks"
ROOM_BYTES = 16 << 10
"""Kept for the record of a failure: more than one ever takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRecord:
    """A rank that began."""

    rank: int
    pid: int
    host: str
    attempt: str = ""
    """Which start of the run the rank belongs to: equal for all its ranks, and another after a restart."""
    has_ended: bool = False
    """Whether it came to its end without a failure."""
    lost: str = ""
    """The process whose death made it stop, by name and number."""

    @property
    def is_here(self) -> bool:
        """Whether it runs on this machine."""
        return self.host == socket.gethostname()


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureRecord:
    """Why a rank stopped."""

    rank: int
    kind: FailureKind
    message: str
    """The error in one line."""
    step: int
    """Steps the rank had finished."""
    phase: str
    """What the rank was doing, such as ``training`` or ``saving``."""
    time_s: float
    """Seconds since 1970 by the machine's clock."""
    attempt: str = ""
    """Which start of the run the rank belonged to, as in its own record."""
    code: str = ""
    """Error code of the refusal, when there was one."""
    fix: str = ""
    exit_code: int = 1
    memory_bytes: Mapping[str, int] = field(default_factory=dict)
    """Components of the ledger as this rank held them, with ``allocated`` where an allocator counts."""
    stack_file: str = ""
    """File that shows where every thread stood."""
    flight_recorder_file: str = ""
    """The last collectives of this rank, as torch recorded them."""


def write_record(folder: Path, record: RankRecord | FailureRecord) -> Path:
    """Write a record of a rank into the run folder, whole or not at all."""
    kind = FAILURES if isinstance(record, FailureRecord) else RANKS
    path = folder / kind / f"rank-{record.rank:04d}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    unfinished.write_text(json.dumps(asdict(record)), encoding="utf-8")
    unfinished.replace(path)
    return path


def keep_room(folder: Path, *, rank: int) -> Path:
    """Take up room on the disk for the record of a rank's failure; deleting the file gives it to the record.

    A disk that fills up must not take away the means to say so.
    """
    path = folder / RANKS / f".room-{rank:04d}"
    path.write_bytes(bytes(ROOM_BYTES))
    return path


def failures_of(folder: Path) -> tuple[FailureRecord, ...]:
    """The failures of a run, first to last."""
    records = [FailureRecord(**fields) for fields in _documents(folder / FAILURES)]
    return tuple(sorted(records, key=lambda record: (record.time_s, record.rank)))


def ranks_of(folder: Path) -> tuple[RankRecord, ...]:
    """The ranks that began, by number."""
    return tuple(RankRecord(**fields) for fields in _documents(folder / RANKS))


def lost_ranks(folder: Path) -> tuple[RankRecord, ...]:
    """Ranks that began, did not end, and wrote no reason."""
    failed = {record.rank for record in failures_of(folder)}
    return tuple(record for record in ranks_of(folder) if not record.has_ended and record.rank not in failed)


def lost_keeper_of(folder: Path) -> str:
    """The process whose death made the ranks of a run stop; empty where none did."""
    return next((record.lost for record in ranks_of(folder) if record.lost), "")


def clear_records(folder: Path) -> None:
    """Forget the ranks and failures of an earlier attempt in the same folder."""
    for kind in (FAILURES, RANKS):
        for path in (folder / kind).glob("rank-*.json"):
            path.unlink(missing_ok=True)


def forget_failure(folder: Path, *, rank: int) -> None:
    """Forget why a rank stopped at an earlier start: a script that runs twice clears nothing for all."""
    (folder / FAILURES / f"rank-{rank:04d}.json").unlink(missing_ok=True)


def is_alive(pid: int) -> bool:
    """Whether a process of this machine runs; one that ended and was not collected does not."""
    try:
        return _state(pid) != "Z"
    except FileNotFoundError:
        return pid > 0 and _takes_signals(pid)  # no Linux, or one that hides the processes of other users (hidepid)
    except OSError:
        return True


def is_stopped(pid: int) -> bool:
    """Whether a process of this machine was stopped by a signal or a debugger."""
    try:
        return _state(pid) in ("T", "t")
    except OSError:
        return False


def _state(pid: int) -> str:
    """The letter Linux gives a process."""
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]


def _takes_signals(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _documents(folder: Path) -> Iterator[dict[str, Any]]:
    paths: list[Path] = []
    with suppress(FileNotFoundError):  # the folder was moved while it was listed
        paths = sorted(folder.glob("rank-*.json"))
    for path in paths:
        try:
            found = json.loads(path.read_bytes())
        except (OSError, ValueError, RecursionError):
            continue  # records are written whole or not at all, so this is none of ours
        if isinstance(found, dict):
            yield found

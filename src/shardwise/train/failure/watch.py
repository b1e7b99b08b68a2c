"""A thread beside the training of every rank: it ends the rank when a peer is gone or nothing moves, and hears signals.

The main thread may sit inside a collective that never ends. This one does not: it reads the run folder a few times a
second, so that one rank's failure ends all within seconds, on every machine that shares the folder.
"""

import faulthandler
import os
import select
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from shardwise.errors import ShardwiseError
from shardwise.train.failure.classify import classify
from shardwise.train.failure.flight_recorder import waiting_collective
from shardwise.train.failure.keepers import (
    FORK_SERVER,
    RESTART_VARIABLE,
    TORCHRUN,
    TORCHRUN_VARIABLE,
    end_with_keepers,
    keepers,
    lost_keeper,
)
from shardwise.train.failure.record import (
    FAILURES,
    FailureKind,
    FailureRecord,
    RankRecord,
    failures_of,
    forget_failure,
    is_alive,
    is_stopped,
    keep_room,
    ranks_of,
    write_record,
)
from shardwise.train.lease import Lease
from shardwise.train.torch_private import flight_record

__all__ = ["RankWatch", "WatchLimits"]

FAILED = 1
STOPPING = (signal.SIGTERM, signal.SIGINT)
"""Signals that ask a rank to stop after the step it is in."""
RELEASING = (FORK_SERVER, TORCHRUN)
"""Who lets a forked rank go that has ended; torchrun would wait for ever for one that leaves without that."""
UNTIMED_PHASES = ("starting", "saving")
"""Phases that may take longer than any step: tokenising data, building the model, writing a large checkpoint."""
MAX_MESSAGE_CHARS = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchLimits:
    """How long a rank waits for what."""

    poll_s: float = 0.5
    """Seconds between two looks at the run folder."""
    peer_grace_s: float = 3.0
    """Seconds from a peer's end to this rank's own, so that its own error is written if there is one."""
    hang_s: float = 900.0
    """Seconds without a finished step; more than the process group's own time-out, which can name the collective."""
    stop_grace_s: float = 600.0
    """Seconds from a signal to the end: the step is finished and a checkpoint is written in between."""


class RankWatch:
    """Watches one rank to its end, whatever the end is."""

    def __init__(self, folder: Path, *, rank: int, limits: WatchLimits | None = None) -> None:
        self._folder = folder
        self._rank = rank
        self._limits = limits or WatchLimits()
        self._record = RankRecord(rank=rank, pid=os.getpid(), host=socket.gethostname(), attempt=_attempt())
        self._keepers = keepers()
        self._read_end, self._write_end = socket.socketpair()
        self._thread = threading.Thread(target=self._watch, name="shardwise-watch", daemon=True)
        self._is_over = threading.Event()
        self._heard_before: dict[signal.Signals, Any] = {}
        self._is_writing = threading.Lock()
        self._room: Path | None = None
        self._beat_s = time.monotonic()
        self.lease: Lease | None = None
        """The run's lease on its folder; nothing is written there once the lease is lost."""
        self.step = 0
        """Finished steps."""
        self.phase = "starting"
        """The phase of this rank in a word, such as ``starting`` or ``training``."""
        self.has_met = False
        """Whether every rank has begun: until then records of other ranks may be those of an earlier start, and it is
        torchrun that ends the ranks when one fails."""
        self.is_stop_requested = False
        """Whether a signal, or the end of a keeper, asks this rank to stop after the step it is in."""
        self.measure_memory: Callable[[], Mapping[str, int]] = dict
        """Gives the bytes of every component this rank holds, for the record of a failure."""

    def start(self) -> None:
        """Say that this rank lives and begin to watch; signals are heard from now on. Call it in the main thread."""
        forget_failure(self._folder, rank=self._rank)
        write_record(self._folder, self._record)
        self._room = keep_room(self._folder, rank=self._rank)
        self._write_end.setblocking(False)
        signal.set_wakeup_fd(self._write_end.fileno(), warn_on_full_buffer=False)
        self._heard_before = {number: signal.signal(number, self._request_stop) for number in STOPPING}
        self._thread.start()

    def beat(self, *, step: int, phase: str = "training") -> None:
        """Something moved: ``step`` steps are finished, and ``phase`` begins."""
        self.step, self.phase = step, phase
        self._beat_s = time.monotonic()

    def finish(self) -> None:
        """End the watch of a rank that ended; signals mean again what they meant before, as nothing is left to save.

        torchrun keeps forked ranks until all have ended, and ends them by a signal when one of the others fails. Where
        it is gone it does neither, so that a rank which has ended goes with it.
        """
        self._is_over.set()
        self._thread.join()
        self._require_lease()
        self._give_room()
        # What is lost asks for a stop at once, which may be over before the thread looks at who it was.
        lost = self._record.lost or str(lost_keeper(self._keepers) or "")
        self._record = replace(self._record, has_ended=True, lost=lost)
        write_record(self._folder, self._record)
        signal.set_wakeup_fd(-1)
        for number, handler in self._heard_before.items():
            signal.signal(number, handler)
        end_with_keepers(tuple(keeper for keeper in self._keepers if keeper.name in RELEASING), exit_code=0)

    def fail(self, error: BaseException) -> None:
        """Write why this rank stops, and end the process at once: threads that wait for lost peers would keep it."""
        with suppress(OSError):  # the log may lie on a disk that is full, which is what shall be said
            traceback.print_exception(error)
        own = error if isinstance(error, ShardwiseError) else None
        self._end(
            classify(error),
            message=_one_line(own.message if own else f"{type(error).__name__}: {error}"),
            code=own.code if own else "",
            fix=own.fix if own else "",
            exit_code=own.exit_code if own else FAILED,
        )

    def _request_stop(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        self.is_stop_requested = True

    def _watch(self) -> None:
        lost_s = stop_s = None
        while not self._is_over.is_set():
            if select.select([self._read_end], [], [], self._limits.poll_s)[0]:
                self._read_end.recv(64)
                self.is_stop_requested = True
            self._require_lease()
            now_s = time.monotonic()
            stop_s = stop_s or (now_s if self.is_stop_requested else None)
            self._look_for_keepers()
            lost_s = (lost_s or now_s) if self.has_met and self._lost_peer() else None
            if lost_s is not None and now_s - lost_s > self._limits.peer_grace_s:
                self._end("stopped", message="stopped because another rank had failed")
            if stop_s is not None and now_s - stop_s > self._limits.stop_grace_s:
                self._end("stopped", message=f"did not come to a stop {self._limits.stop_grace_s:.0f} s after a signal")
            if now_s - self._beat_s > self._limits.hang_s and self.phase not in UNTIMED_PHASES:
                self._end("hang", message=f"no step was finished for {self._limits.hang_s:.0f} s")

    def _look_for_keepers(self) -> None:
        """Stop as after a signal when a keeper was killed, which could not ask for it; at once with nothing to save."""
        lost = None if self._record.lost else lost_keeper(self._keepers)
        if lost is None:
            return
        self._record = replace(self._record, lost=str(lost))
        with suppress(OSError):
            write_record(self._folder, self._record)
        with suppress(OSError):
            sys.stderr.write(f"rank {self._rank}: {lost} is gone; the run stops\n")
            sys.stderr.flush()
        if self.phase == "starting":
            self._end("stopped", message=f"{lost} was gone before the first step")
        self.is_stop_requested = True

    def _require_lease(self) -> None:
        """Give the run's sign of life; end the process at once, without a trace in it, when the folder is another's."""
        lost = self.lease.look() if self.lease is not None else None
        if lost is not None:
            _say(f"rank {self._rank}: {lost.message}")
            os._exit(lost.exit_code)

    def _lost_peer(self) -> bool:
        """Whether another rank has failed, or is gone from this machine without a word."""
        own, attempt = self._rank, self._record.attempt
        if any(record.rank != own and record.attempt == attempt for record in failures_of(self._folder)):
            return True
        peers = [record for record in ranks_of(self._folder) if record.rank != own and record.attempt == attempt]
        return any(record.is_here and not record.has_ended and not is_alive(record.pid) for record in peers)

    def _end(self, kind: FailureKind, *, message: str, code: str = "", fix: str = "", exit_code: int = FAILED) -> None:
        """Write the record and leave; whichever thread is first."""
        self._require_lease()
        if not self._is_writing.acquire(blocking=False):
            time.sleep(self._limits.peer_grace_s)
            os._exit(FAILED)
        is_stuck = kind in ("hang", "stopped")
        recorder = self._dumped(self._dump_flight_recorder) if kind == "hang" else ""
        waiting = waiting_collective(Path(recorder)) if recorder else ""
        message = f"{message}, waiting in {waiting}" if waiting else message
        stopped = self._stopped_peers() if kind == "hang" else []
        message += "".join(f"; rank {peer.rank} (process {peer.pid}) was stopped by a signal" for peer in stopped)
        record = FailureRecord(
            rank=self._rank,
            kind=kind,
            message=message,
            step=self.step,
            phase=self.phase,
            time_s=time.time(),
            attempt=self._record.attempt,
            code=code,
            fix=fix,
            exit_code=exit_code,
            memory_bytes=dict(self.measure_memory()) if kind == "out-of-memory" else {},
            stack_file=self._dumped(self._dump_stacks) if is_stuck else "",
            flight_recorder_file=recorder,
        )
        self._write(record)
        for peer in stopped:
            # It can hear no other signal, and torchrun would wait half a minute for it.
            with suppress(ProcessLookupError):
                os.kill(peer.pid, signal.SIGKILL)
        if self.lease is not None:  # another host would wait a minute for signs of life
            self.lease.release()
        os._exit(FAILED)

    def _write(self, record: FailureRecord) -> None:
        """Write why this rank stops; on a full disk where room was kept for it."""
        with suppress(OSError):
            self._give_room()
            write_record(self._folder, record)
            return
        _say(f"rank {self._rank}: {record.message} (and the record of it could not be written)")

    def _give_room(self) -> None:
        if self._room is not None:
            self._room.unlink(missing_ok=True)

    def _dumped(self, dump: Callable[[], str]) -> str:
        """The file that ``dump`` writes; none where the disk refuses it, as the record says more."""
        with suppress(OSError):
            return dump()
        return ""

    def _stopped_peers(self) -> list[RankRecord]:
        """Ranks of this run that stand still on this machine because someone stopped their processes."""
        peers = [record for record in ranks_of(self._folder) if record.attempt == self._record.attempt]
        return [peer for peer in peers if peer.is_here and not peer.has_ended and is_stopped(peer.pid)]

    def _dump_stacks(self) -> str:
        path = self._folder / FAILURES / f"stacks-rank-{self._rank:04d}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w", encoding="utf-8") as file:
            faulthandler.dump_traceback(file, all_threads=True)
        return str(path)

    def _dump_flight_recorder(self) -> str:
        """torch's record of the last collectives: as JSON, and as the pickle that ``torchfrtrace`` reads.

        Empty where this build of torch keeps none.
        """
        if not torch.distributed.is_initialized():
            return ""
        path = self._folder / FAILURES / f"flight-recorder-rank-{self._rank:04d}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        for kind in ("nccl", "fr"):
            if (record := flight_record(kind)) is None:
                continue
            as_json, as_pickle = record
            if b'"entries":[{' not in (found := _as_bytes(as_json())):
                continue
            path.write_bytes(found)
            path.with_name(f"flight_recorder_{self._rank}").write_bytes(_as_bytes(as_pickle()))
            return str(path)
        return ""


def _attempt() -> str:
    """An identifier of this start, the same on all its ranks, which tells its records from those of earlier starts."""
    return f"{os.environ.get(TORCHRUN_VARIABLE, '')}/{os.environ.get(RESTART_VARIABLE, '0')}"


def _say(line: str) -> None:
    with suppress(OSError):
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()


def _one_line(text: str) -> str:
    return " ".join(text.split())[:MAX_MESSAGE_CHARS]


def _as_bytes(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode()

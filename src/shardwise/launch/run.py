"""Run a job on this machine: start torchrun, follow its metrics, and say what became of it."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import BinaryIO

from shardwise.errors import ShardwiseError
from shardwise.launch.command import job_environment, starting_words
from shardwise.launch.folder import METRICS_FILE
from shardwise.launch.session import end_session, killed_torchrun, session
from shardwise.launch.support import require_base
from shardwise.launch.surroundings import may_fork
from shardwise.plan import Plan
from shardwise.train.failure.diagnose import TrainingError, diagnose
from shardwise.train.failure.full_disk import disk_full_error, free_bytes, writing
from shardwise.train.failure.record import (
    ROOM_BYTES,
    clear_records,
    failures_of,
    is_alive,
    lost_keeper_of,
    lost_ranks,
    ranks_of,
)
from shardwise.train.failure.stopped import lost_keeper_error, newest_checkpoint, stopped_error
from shardwise.train.failure.threads import NO_THREAD, thread_sentences
from shardwise.train.job import Job, write_job
from shardwise.train.lease import LIFE_VARIABLE, Lease

POLL_S = 0.2
GRACE_S = 600.0
"""How long a run that was asked to stop may take to finish its step and save its states."""
KEPT_S = 5.0
"""How long torchrun may take to end once its ranks have. A torchrun that was signalled itself, as by a scheduler, no
longer tells forked ranks that they may go, and keeps them until it kills them."""
MEASUREMENT_FILE = "measurement.json"
OUTPUT_FILE = "output.log"
TAIL_LINES = 20


class Ending:
    """Hears the signals that ask a run to stop: the first lets it finish its step, a second ends it at once."""

    def __init__(self, folder: Path, process: "subprocess.Popen[bytes]") -> None:
        self._folder, self._process = folder, process
        self._asked_s: float | None = None
        self._ended_s: float | None = None
        self.number: int | None = None
        """The first signal that was heard."""

    def hear(self, number: int, frame: FrameType | None) -> None:
        """Pass a signal on: the first asks the ranks to stop after their step."""
        del frame
        workers = self._workers()
        is_first, self.number = self.number is None, number
        if not is_first or not workers:
            self.kill()
            return
        self._asked_s = time.monotonic()
        for pid in workers:
            with suppress(ProcessLookupError):  # it ended meanwhile
                os.kill(pid, signal.SIGTERM)

    def look(self) -> None:
        """End a run that takes too long to stop, or whose ranks have done so and are kept by a torchrun that waits."""
        now_s = time.monotonic()
        if self._asked_s is None and self._process.poll() is not None:
            self._asked_s = now_s  # its end is the sign that asks ranks to stop
        if self._asked_s is None:
            return
        ranks = ranks_of(self._folder)
        if not ranks or not all(record.has_ended for record in ranks):
            self._ended_s = None
        elif self._ended_s is None:
            self._ended_s = now_s
        is_kept = self._ended_s is not None and now_s - self._ended_s > KEPT_S
        if is_kept or now_s - self._asked_s > GRACE_S:
            self.kill()

    def has_ended(self) -> bool:
        """Whether torchrun and the ranks have ended; ranks that outlive torchrun finish their step and save."""
        return self._process.poll() is not None and not self._workers()

    def kill(self) -> None:
        """End every process of the run at once; ranks that were not forked have sessions of their own."""
        end_session(self._process)
        for pid in self._workers():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _workers(self) -> list[int]:
        return [record.pid for record in ranks_of(self._folder) if record.is_here and is_alive(record.pid)]


def run_job(
    job: Job,
    *,
    on_step: Callable[[Mapping[str, object]], None],
    plan: Plan | None = None,
    lease: Lease | None = None,
) -> Mapping[str, object]:
    """Train the job in processes of this machine and return the measurement.

    Args:
        job: what to train.
        on_step: called with the record of every step.
        plan: what the job was made from; an out-of-memory error is set against its prediction.
        lease: holds the run's folders, where the caller took it; the ranks take one of their own otherwise.

    Raises:
        ShardwiseError: why the run failed, in one message, or that a signal stopped it.
    """
    require_base(job)
    clear_records(job.folder)
    with writing(job.folder):
        write_job(job)
    output = job.folder / OUTPUT_FILE
    added = job_environment(job, inherited=os.environ)
    if lease is not None:
        added[LIFE_VARIABLE] = lease.lineage.life
    words = starting_words(job, forks=may_fork(job.device))
    with output.open("ab") as log, _started(job, words, added, log) as (process, ending):
        step: object = None
        for record in _records(job.folder / METRICS_FILE, ending, lease):
            on_step(record)
            step = record["step"]
    if lease is not None:
        lease.require_held()
    if ending.number is not None:
        raise stopped_error(job, ending.number)
    is_done = step == job.num_steps and all(record.has_ended for record in ranks_of(job.folder))
    lost = killed_torchrun(process) or lost_keeper_of(job.folder)
    if lost and not is_done:
        raise lost_keeper_error(job, lost)
    if process.returncode != 0 and not lost:
        raise _with_what_was_saved(_failure(job.folder, process.returncode, plan), job)
    measured: Mapping[str, object] = _measured(job)
    if step != job.num_steps and not _ended_early(measured):
        # A signal reached a rank and not this process: all ranks saved and ended as they are asked to.
        raise stopped_error(job, signal.SIGTERM)
    return measured


def _measured(job: Job) -> Mapping[str, object]:
    """The measurement in the run folder; nothing before the first one is written."""
    path = job.folder / MEASUREMENT_FILE
    found: Mapping[str, object] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return found


def _ended_early(measured: Mapping[str, object]) -> bool:
    """Whether the validations brought so little that the run ended by itself."""
    validation = measured.get("validation")
    return isinstance(validation, Mapping) and bool(validation.get("ended_early"))


@contextmanager
def _started(
    job: Job, words: list[str], added: Mapping[str, str], log: BinaryIO
) -> "Iterator[tuple[subprocess.Popen[bytes], Ending]]":
    """The processes, and what passes signals on to them until they have ended."""
    with session(words, added=added, log=log) as process:
        ending = Ending(job.folder, process)
        heard = {number: signal.signal(number, ending.hear) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield process, ending
        finally:
            ending.kill()
            for number, before in heard.items():
                signal.signal(number, before)


def _records(metrics: Path, ending: Ending, lease: Lease | None) -> Iterator[Mapping[str, object]]:
    """The lines of the metrics file as they are written, until the processes end."""
    # Behind the last whole line: rank 0 takes away one that was cut short, and writes another in its place.
    position = metrics.read_bytes().rfind(b"\n") + 1 if metrics.exists() else 0
    while True:
        has_ended = ending.has_ended()
        lines: list[bytes] = []
        with suppress(FileNotFoundError), metrics.open("rb") as file:  # there is none yet, or the folder was moved
            file.seek(position)
            *lines, rest = file.read().split(b"\n")
            position = file.tell() - len(rest)
        for line in lines:
            yield json.loads(line)
        if has_ended:
            return
        ending.look()
        if lease is not None:
            lease.look()
        time.sleep(POLL_S)


def _with_what_was_saved(error: ShardwiseError, job: Job) -> ShardwiseError:
    """The error with the checkpoint that the run can go on from, where it has one."""
    newest = newest_checkpoint(job)
    if newest is not None:
        error.message = f"{error.message}; the newest checkpoint is {newest.path}"
    return error


def _failure(folder: Path, exit_code: int, plan: Plan | None) -> ShardwiseError:
    """What the ranks wrote before they ended, or the end of their output."""
    if failures_of(folder) or lost_ranks(folder):
        return diagnose(folder, plan=plan, exit_code=exit_code)
    if free_bytes(folder) < ROOM_BYTES:
        return disk_full_error(folder / OUTPUT_FILE)
    tail = "\n".join((folder / OUTPUT_FILE).read_text(encoding="utf-8", errors="replace").splitlines()[-TAIL_LINES:])
    if (phrase := next((phrase for phrase in NO_THREAD if phrase in tail.lower()), None)) is not None:
        said, fix = thread_sentences(None, phrase)
        return TrainingError(f"{said}; the last words of its processes were:\n{tail}", code="train-threads", fix=fix)
    return TrainingError(
        f"the training processes ended with exit code {exit_code}; their last words were:\n{tail}",
        code="train-failed",
        fix=f"read {folder / OUTPUT_FILE}",
    )

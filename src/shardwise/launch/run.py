"""Run a job on this machine: start torchrun, follow its metrics, and say what became of it."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from shardwise.errors import ShardwiseError
from shardwise.launch.command import environment, torchrun_words
from shardwise.train.job import Job, write_job

POLL_S = 0.2
GRACE_S = 60.0
"""How long a run that was asked to stop may take to save its states."""
FAILURE_FILE = "failure.json"
METRICS_FILE = "metrics.jsonl"
MEASUREMENT_FILE = "measurement.json"
OUTPUT_FILE = "output.log"
TAIL_LINES = 20


class TrainingError(ShardwiseError):
    """A run that ended before its last step."""

    exit_code = 1


def run_job(job: Job, *, on_step: Callable[[Mapping[str, object]], None]) -> Mapping[str, object]:
    """Train the job in processes of this machine and return the measurement.

    Raises:
        ShardwiseError: a worker said what went wrong.
        TrainingError: the processes ended without saying why.
    """
    write_job(job)
    output = job.folder / OUTPUT_FILE
    added = environment(job.layout, inherited=os.environ)
    with output.open("ab") as log, _started(torchrun_words(job, num_nodes=1), added, log) as process:
        for record in _records(job.folder / METRICS_FILE, process):
            on_step(record)
    if process.returncode != 0:
        raise _failure(job.folder, process.returncode)
    measured: Mapping[str, object] = json.loads((job.folder / MEASUREMENT_FILE).read_text(encoding="utf-8"))
    return measured


@contextmanager
def _started(words: list[str], added: Mapping[str, str], log: object) -> "Iterator[subprocess.Popen[bytes]]":
    """The processes; Ctrl-C reaches them as SIGTERM and they get time to save."""
    process = subprocess.Popen(
        words,
        env={**os.environ, **added},
        stdout=log,  # type: ignore[call-overload]
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        yield process
    except KeyboardInterrupt:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=GRACE_S)
        raise
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _records(metrics: Path, process: "subprocess.Popen[bytes]") -> Iterator[Mapping[str, object]]:
    """The lines of the metrics file as they are written, until the processes end."""
    position, rest = 0, ""
    while True:
        has_ended = process.poll() is not None
        if metrics.exists():
            with metrics.open(encoding="utf-8") as file:
                file.seek(position)
                rest += file.read()
                position = file.tell()
            *lines, rest = rest.split("\n")
            for line in lines:
                yield json.loads(line)
        if has_ended:
            return
        time.sleep(POLL_S)


def _failure(folder: Path, exit_code: int) -> ShardwiseError:
    """What a worker wrote before it ended, or the end of its output."""
    path = folder / FAILURE_FILE
    if path.exists():
        said = json.loads(path.read_text(encoding="utf-8"))
        error = TrainingError(said["message"], code=said["code"], fix=said["fix"])
        error.exit_code = int(said.get("exit_code", 1))
        return error
    tail = "\n".join((folder / OUTPUT_FILE).read_text(encoding="utf-8", errors="replace").splitlines()[-TAIL_LINES:])
    return TrainingError(
        f"the training processes ended with exit code {exit_code}; their last words were:\n{tail}",
        code="train-failed",
        fix=f"read {folder / OUTPUT_FILE}",
    )

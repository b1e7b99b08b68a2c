"""torchrun for the script of a run that nobody follows: it ends with the run's own message and exit code.

``python -m shardwise.train.scripted_torchrun OPTION… -m shardwise.train.worker JOB`` is ``torchrun`` with those words.
Where torchrun would end in a traceback about its children or about a signal, this says what ``shardwise train`` says.

Where the job allows restarts, a failure that one can mend replaces this process by its next attempt, under the same
process id, so that signals of a scheduler still find it. On many nodes every node does so by itself: all of them see
the same records in the run folder, and meet under a run id that names the attempt.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

from shardwise.errors import ShardwiseError
from shardwise.plan_file import read_plan
from shardwise.render.errors import error_text
from shardwise.train.failure.diagnose import diagnose
from shardwise.train.failure.record import clear_records, failures_of, lost_keeper_of, lost_ranks, ranks_of
from shardwise.train.failure.retry import attempt_of, next_attempt, retry_text
from shardwise.train.failure.stopped import lost_keeper_error, stopped_error
from shardwise.train.job import Job, read_job
from shardwise.train.lease import LeaseError, require_free
from shardwise.train.patient_torchrun import STANDALONE, run_torchrun

PLAN_FILE = "plan.json"
REPORT = "shardwise.launch.report"
RUN_ID = "--rdzv-id="


def main(words: list[str]) -> int:
    """Run torchrun; the exit code of a stopped run is that of a process which the signal ended."""
    job = read_job(Path(words[-1]))
    try:
        error = _run(job, _named(words))
        if error is not None:
            _start_again(job, error, words)
    except SignalException as signalled:
        return _said(stopped_error(job, signalled.sigval))
    except KeyboardInterrupt:  # before there were ranks to pass it on to
        return _said(stopped_error(job, signal.SIGINT))
    if error is None:
        _write_report(job)
    return _said(error) if error is not None else 0


def _run(job: Job, words: list[str]) -> ShardwiseError | None:
    """Run torchrun to its end, and return why the run failed, if it did."""
    try:
        run_torchrun(words)
    except ChildFailedError:
        if (refusal := _refusal(job, words)) is not None:
            return refusal
        if not (failures_of(job.folder) or lost_ranks(job.folder)):
            raise  # the run folder is another machine's, or no rank came as far as to write into it
        plan = job.folder / PLAN_FILE
        return diagnose(job.folder, plan=read_plan(plan) if plan.is_file() else None)
    lost = lost_keeper_of(job.folder)
    return lost_keeper_error(job, lost) if lost else None


def _write_report(job: Job) -> None:
    """Let the machine of rank 0, which wrote the measurement, write the page of the run."""
    first = next((record for record in ranks_of(job.folder) if record.rank == 0), None)
    if first is not None and first.is_here and (job.folder / PLAN_FILE).is_file():
        subprocess.run([sys.executable, "-m", REPORT, str(job.folder)], check=False)  # a run has ended well without it


def _named(words: list[str]) -> list[str]:
    """The words with a run id that no other attempt has: ranks would take records of an earlier one for peers."""
    number = attempt_of().num_restarts
    return [f"{word}.{number}" if number and word.startswith(RUN_ID) else word for word in words]


def _start_again(job: Job, error: ShardwiseError, words: list[str]) -> None:
    """Replace this process by the next attempt, after a wait; return where none can mend the failure."""
    following = next_attempt(error, folder=job.folder, num_restarts=job.num_restarts, before=attempt_of())
    if following is None:
        return
    sys.stderr.write(retry_text(error, following, num_restarts=job.num_restarts) + "\n")
    sys.stderr.flush()
    time.sleep(following.wait_s)
    if STANDALONE in words:
        clear_records(job.folder)  # of one machine: on many, each rank forgets its own
    os.environ |= following.to_environment()
    os.execv(sys.executable, [sys.executable, "-m", "shardwise.train.scripted_torchrun", *words])


def _refusal(job: Job, words: list[str]) -> LeaseError | None:
    """The error of a start whose run folder another live run holds, so that no rank began; ``None`` otherwise."""
    run_id = next((word.removeprefix(RUN_ID) for word in words if word.startswith(RUN_ID)), "")
    try:
        require_free(job, run_id=run_id)
    except LeaseError as error:
        return error
    return None


def _said(error: ShardwiseError) -> int:
    sys.stderr.write(error_text(message=error.message, code=error.code, fix=error.fix))
    return error.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

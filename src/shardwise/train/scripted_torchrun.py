"""torchrun for the script of a run that nobody follows: it ends with the run's own message and exit code.

``python -m shardwise.train.scripted_torchrun OPTION… -m shardwise.train.worker JOB`` is ``torchrun`` with those words.
Where torchrun would end in a traceback about its children or about a signal, this says what ``shardwise train`` says.
"""

import signal
import sys
from pathlib import Path

from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

from shardwise.errors import ShardwiseError
from shardwise.plan_file import read_plan
from shardwise.render.errors import error_text
from shardwise.train.failure.diagnose import diagnose
from shardwise.train.failure.record import failures_of, lost_keeper_of, lost_ranks
from shardwise.train.failure.stopped import lost_keeper_error, stopped_error
from shardwise.train.job import Job, read_job
from shardwise.train.lease import LeaseError, require_free
from shardwise.train.patient_torchrun import run_torchrun

PLAN_FILE = "plan.json"


def main(words: list[str]) -> int:
    """Run torchrun; the exit code of a stopped run is that of a process which the signal ended."""
    job = read_job(Path(words[-1]))
    try:
        run_torchrun(words)
    except SignalException as signalled:
        return _said(stopped_error(job, signalled.sigval))
    except KeyboardInterrupt:  # before there were ranks to pass it on to
        return _said(stopped_error(job, signal.SIGINT))
    except ChildFailedError:
        if (refusal := _refusal(job, words)) is not None:
            return _said(refusal)
        if not (failures_of(job.folder) or lost_ranks(job.folder)):
            raise  # the run folder is another machine's, or no rank came as far as to write into it
        plan = job.folder / PLAN_FILE
        return _said(diagnose(job.folder, plan=read_plan(plan) if plan.is_file() else None))
    lost = lost_keeper_of(job.folder)
    return _said(lost_keeper_error(job, lost)) if lost else 0


def _refusal(job: Job, words: list[str]) -> LeaseError | None:
    """What ranks said that did not begin, because a run that lives holds the folder; its records are not theirs."""
    run_id = next((word.partition("=")[2] for word in words if word.startswith("--rdzv-id=")), "")
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

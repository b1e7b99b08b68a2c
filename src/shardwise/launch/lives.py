"""Run a job on this machine through failures that a retry can mend, each start from its newest whole checkpoint."""

import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext

from shardwise.errors import ShardwiseError
from shardwise.launch.folder import held_folder
from shardwise.launch.run import run_job
from shardwise.plan import Plan
from shardwise.train.checkpoint.continued import continued
from shardwise.train.failure.retry import Attempt, next_attempt, retry_text
from shardwise.train.job import Job
from shardwise.train.lease import Lease

__all__ = ["run_lives"]


def run_lives(
    job: Job,
    *,
    on_step: Callable[[Mapping[str, object]], None],
    plan: Plan,
    lease: Lease,
    say: Callable[[str], None],
) -> Mapping[str, object]:
    """Train the job and return the measurement of the life that came to the end.

    Args:
        job: what to train, with the number of restarts that it may take.
        on_step: called with the record of every step.
        plan: what the job was made from.
        lease: holds the run's folders for the first life; every restart takes one of its own.
        say: called with a sentence before every restart.

    Raises:
        ShardwiseError: why the last life failed, or that a signal stopped it.
    """
    attempt = Attempt()
    while True:
        with held_folder(job) if attempt.num_restarts else nullcontext(lease) as held:
            try:
                return run_job(job, on_step=on_step, plan=plan, lease=held)
            except ShardwiseError as error:
                following = next_attempt(error, folder=job.folder, num_restarts=job.num_restarts, before=attempt)
                if following is None:
                    raise
                attempt = following
                say(retry_text(error, attempt, num_restarts=job.num_restarts))
                time.sleep(attempt.wait_s)
                held.release()
        job = continued(job)

"""A run that a signal asked to stop: how it ends, whoever started its ranks."""

import signal
from pathlib import Path

from shardwise.train.checkpoint.folder import CheckpointFolder
from shardwise.train.failure.diagnose import TrainingError
from shardwise.train.job import Job

__all__ = ["EXIT_OF_SIGNALS", "StoppedError", "stopped_error"]

EXIT_OF_SIGNALS = 128
"""A process that a signal ends has this and the signal's number as its exit code in a shell."""


class StoppedError(TrainingError):
    """A run that a signal asked to stop."""


def stopped_error(job: Job, number: int) -> StoppedError:
    """What a run that was asked to stop leaves behind."""
    name, spec = signal.Signals(number).name, job.checkpoint
    newest = CheckpointFolder(Path(spec.folder)).newest() if spec.folder else None
    if newest:
        saved, fix = f"its newest checkpoint is {newest.path}", f"go on with --resume {newest.path.parent}"
    elif spec.resume_from:
        saved, fix = "it saved no checkpoint of its own", f"start again with --resume {spec.resume_from}"
    elif spec.every_steps:
        saved, fix = "no checkpoint was saved yet", "start again; once it trains, one Ctrl-C lets it save"
    else:
        saved, fix = "no checkpoint was asked for", "save states with --checkpoint-every"
    error = StoppedError(f"the run was stopped by {name}; {saved}", code="train-stopped", fix=fix)
    error.exit_code = EXIT_OF_SIGNALS + number
    return error

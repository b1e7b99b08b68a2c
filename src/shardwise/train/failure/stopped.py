"""A run that a signal asked to stop: how it ends, whoever started its ranks."""

import signal
from pathlib import Path

from shardwise.train.checkpoint.folder import Checkpoint, CheckpointFolder
from shardwise.train.failure.diagnose import TrainingError
from shardwise.train.job import Job

__all__ = ["EXIT_OF_SIGNALS", "StoppedError", "lost_keeper_error", "stopped_error"]

EXIT_OF_SIGNALS = 128
"""A process that a signal ends has this and the signal's number as its exit code in a shell."""


class StoppedError(TrainingError):
    """A run that a signal asked to stop."""


def stopped_error(job: Job, number: int) -> StoppedError:
    """The error of a run that was asked to stop: what it has saved, and how to go on."""
    saved, fix = _left_behind(job)
    name = signal.Signals(number).name
    error = StoppedError(f"the run was stopped by {name}; {saved}", code="train-stopped", fix=fix)
    error.exit_code = EXIT_OF_SIGNALS + number
    return error


def lost_keeper_error(job: Job, lost: str) -> TrainingError:
    """The error of a run whose ranks stopped because a process beside them was killed: what is saved, how to go on."""
    saved, fix = _left_behind(job)
    return TrainingError(
        f"{lost} died without a word, and the ranks stopped: it was killed from outside, by a person, or by a host "
        f"that ran out of memory; {saved}",
        code="train-process-died",
        fix=fix,
    )


def newest_checkpoint(job: Job) -> Checkpoint | None:
    """The checkpoint that a run can go on from; ``None`` where it saved none of its own."""
    folder = job.checkpoint.folder
    return CheckpointFolder(Path(folder)).newest() if folder else None


def _left_behind(job: Job) -> tuple[str, str]:
    """What a run that was stopped has saved, and how to go on."""
    spec, newest = job.checkpoint, newest_checkpoint(job)
    if newest:
        return f"its newest checkpoint is {newest.path}", f"go on with --resume {newest.path.parent}"
    if spec.resume_from:
        return "it saved no checkpoint of its own", f"start again with --resume {spec.resume_from}"
    if spec.every_steps:
        return "no checkpoint was saved yet", "start again; once it trains, one Ctrl-C lets it save"
    return "no checkpoint was asked for", "save states with --checkpoint-every"

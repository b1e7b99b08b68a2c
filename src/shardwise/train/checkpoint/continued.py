"""A job that was started before goes on from its own newest checkpoint, whoever starts it again."""

import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from shardwise.train.checkpoint.folder import CheckpointFolder
from shardwise.train.checkpoint.lineage import lineage_of
from shardwise.train.job import Job
from shardwise.train.lease import LIVES

__all__ = ["continued"]


def continued(job: Job) -> Job:
    """The job with the newest whole checkpoint that an earlier life in its run folder saved as the one to resume.

    Checkpoints that another run left in the same folder are not taken up; the job is unchanged without one of its own.
    """
    folder = job.checkpoint.folder
    newest = CheckpointFolder(Path(folder)).newest() if folder else None
    if newest is None or lineage_of(newest.path).life not in _lives(job.folder):
        return job
    return replace(job, checkpoint=replace(job.checkpoint, resume_from=str(newest.path)))


def _lives(run_folder: Path) -> set[str]:
    """The names of the lives that the run folder had."""
    names = set()
    for path in (run_folder / LIVES).glob("*.json"):
        with suppress(OSError, ValueError, KeyError, TypeError):
            names.add(str(json.loads(path.read_text(encoding="utf-8"))["life"]))
    return names

"""The records of a run as a run of Weights & Biases, on this machine unless its own variables say otherwise."""

import os
from typing import Any

from shardwise.train.failure.full_disk import writing
from shardwise.train.job import Job, job_to_json
from shardwise.train.metrics import StepRecord, points_of

MODE_VARIABLE = "WANDB_MODE"
OFFLINE = "offline"
STEP = "step"
"""The curve that W&B lays all others over. Its own count of calls would go on where a rollback goes back."""


class WandbRun:
    """Gives W&B the points of every curve for every step."""

    def __init__(self, job: Job) -> None:
        import wandb  # noqa: PLC0415 - a library of those who use it

        self.folder = job.folder
        with writing(self.folder):
            self.run: Any = wandb.init(
                project=job.watch.wandb,
                name=job.folder.name,
                dir=str(job.folder),
                config=job_to_json(job),
                mode=os.environ.get(MODE_VARIABLE, OFFLINE),
            )
            self.run.define_metric("*", step_metric=STEP)

    def add(self, record: StepRecord) -> None:
        """Log the points of one more step."""
        with writing(self.folder):
            self.run.log({**points_of(record), STEP: record.step})

    def close(self) -> None:
        """Write what is pending; no more steps come."""
        with writing(self.folder):
            self.run.finish()

"""What every process that torchrun starts runs: ``python -m shardwise.train.worker RUN_FOLDER/job.json``."""

import json
import os
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from shardwise.errors import ShardwiseError
from shardwise.train.checkpoint.checkpointer import CheckpointRequest, DistributedCheckpointer
from shardwise.train.feed import open_feed
from shardwise.train.job import Job, read_job
from shardwise.train.loop import Trainer, make_trainer, train
from shardwise.train.measuring import measurement_object
from shardwise.train.mesh import make_mesh, pick_device
from shardwise.train.metrics import StepLog, StepRecord
from shardwise.train.precision import use_fast_kernels

MEASUREMENT_FILE = "measurement.json"
FAILURE_FILE = "failure.json"
TIMEOUT = timedelta(minutes=10)


def main(words: list[str]) -> int:
    """Train the job in the file that is named and return the exit code."""
    job = read_job(Path(words[0]))
    device = pick_device(job.device, local_rank=int(os.environ.get("LOCAL_RANK", "0")))
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo", timeout=TIMEOUT)
    try:
        run_job(job, device=device)
    except ShardwiseError as error:
        return _refuse(job, error)
    finally:
        dist.destroy_process_group()
    return 0


def _refuse(job: Job, error: ShardwiseError) -> int:
    """Leave what was wrong where the launcher looks for it; every rank says the same."""
    said = {"message": error.message, "code": error.code, "fix": error.fix, "exit_code": error.exit_code}
    (job.folder / FAILURE_FILE).write_text(json.dumps(said) + "\n", encoding="utf-8")
    return error.exit_code


def run_job(job: Job, *, device: torch.device) -> tuple[Trainer, list[StepRecord]]:
    """Train a job in an initialised process group; rank 0 writes metrics and the measurement."""
    mesh = make_mesh(job.layout, device_type=device.type)
    source = open_feed(
        job,
        data_parallel_rank=mesh.data_parallel_rank,
        vocab_size=int(str(job.model_config["vocab_size"])),
        device=device,
    )
    with use_fast_kernels():
        trainer = make_trainer(job, mesh, device=device, source=source)
        records = _train_all(trainer, job)
    source.close()
    return trainer, records


def open_checkpoints(job: Job) -> DistributedCheckpointer:
    """What saves and loads the states of this job."""
    spec = job.checkpoint
    return DistributedCheckpointer(
        CheckpointRequest(
            folder=Path(spec.folder) if spec.folder else None,
            every_steps=spec.every_steps,
            is_async=spec.is_async,
            num_kept=spec.num_kept,
            resume_from=Path(spec.resume_from) if spec.resume_from else None,
        )
    )


def _train_all(trainer: Trainer, job: Job) -> list[StepRecord]:
    checkpoints, states = open_checkpoints(job), trainer.states()
    trainer.progress.step = checkpoints.load(states)
    is_writer = dist.get_rank() == 0
    log = StepLog(job.folder, is_writer=is_writer, listeners=())

    def after_step(step: int) -> bool:
        checkpoints.after_step(step, states)
        return True

    train(trainer, on_step=log.add, after_step=after_step)
    checkpoints.finish(trainer.progress.step, states)
    log.close()
    measured = measurement_object(trainer, log.records)
    if is_writer:
        text = json.dumps(measured, indent=1) + "\n"
        (job.folder / MEASUREMENT_FILE).write_text(text, encoding="utf-8")
    return log.records


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

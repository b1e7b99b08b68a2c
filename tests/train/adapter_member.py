"""What a rank of a run with adapters holds and computes."""

from dataclasses import dataclass

import torch

from shardwise.train.job import Job
from shardwise.train.measuring import measurement_object
from shardwise.train.worker import run_job

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Held:
    losses: list[float]
    trained_names: list[str]
    parameter_bytes: int
    optimizer_bytes: int
    num_frozen_gradients: int


def hold(job: Job) -> Held:
    trainer, records = run_job(job, device=CPU)
    frozen = [p for d in trainer.built.decoders for p in d.parameters() if not p.requires_grad]
    measured = measurement_object(trainer, records)["memory"]["components_bytes"]
    return Held(
        losses=[r.loss for r in records],
        trained_names=[entry.name for entry in trainer.trained],
        parameter_bytes=measured["parameters"],
        optimizer_bytes=measured["optimizer"],
        num_frozen_gradients=sum(p.grad is not None for p in frozen),
    )

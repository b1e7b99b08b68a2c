"""What a member of a test world runs; imported once by the forkserver, so that a member starts in milliseconds."""

from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

from shardwise.train.job import Job
from shardwise.train.worker import run_job

CPU = torch.device("cpu")
GLOO_TIMEOUT = timedelta(seconds=60)


@dataclass(frozen=True)
class Result:
    losses: list[float]
    norms: list[float]


def join_world(rank: int, size: int, rendezvous: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=size, timeout=GLOO_TIMEOUT
    )


def run(job: Job) -> Result:
    trainer, records = run_job(job, device=CPU)
    del trainer
    return Result(losses=[r.loss for r in records], norms=[r.gradient_norm for r in records])

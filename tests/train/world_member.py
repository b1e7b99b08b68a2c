"""What a member of a test world runs; imported once by the forkserver, so that a member starts in milliseconds."""

from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

from shardwise.train.counting import CollectiveCounter, Counted
from shardwise.train.feed import open_feed
from shardwise.train.job import Job
from shardwise.train.loop import make_trainer
from shardwise.train.mesh import make_mesh
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


def leave_groups() -> None:
    """Drop the groups that a job made: gloo keeps threads for every one of them, thousands in a session."""
    for group in list(dist.distributed_c10d._world.pg_map):
        if group is not dist.group.WORLD:
            dist.destroy_process_group(group)


def run(job: Job) -> Result:
    trainer, records = run_job(job, device=CPU)
    del trainer
    return Result(losses=[r.loss for r in records], norms=[r.gradient_norm for r in records])


def count(job: Job) -> list[tuple[Counted, int]]:
    """Collectives of the third optimizer step: DDP agrees on its buckets in the first two."""
    mesh = make_mesh(job.layout, device_type="cpu")
    feed = open_feed(job, data_parallel_rank=mesh.data_parallel_rank, vocab_size=256, device=CPU)
    trainer = make_trainer(job, mesh, device=CPU, source=feed)
    trainer.step()
    trainer.step()
    with CollectiveCounter() as counter:
        trainer.step()
    feed.close()
    return list(counter.calls.items())

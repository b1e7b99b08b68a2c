"""What a member of a test world runs; imported once by the forkserver, so that a member starts in milliseconds."""

from collections import Counter
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from shardwise.step.native_engine import uses_ddp
from shardwise.train.feed import open_feed
from shardwise.train.job import Job
from shardwise.train.loop import make_trainer
from shardwise.train.mesh import make_mesh
from shardwise.train.metrics import StepRecord
from shardwise.train.router_balance import sparse_blocks_of
from shardwise.train.routing import biases_of
from shardwise.train.worker import run_job
from train.collective_counter import CollectiveCounter, Counted

CPU = torch.device("cpu")
GLOO_TIMEOUT = timedelta(seconds=600)


@dataclass(frozen=True)
class Result:
    losses: list[float]
    norms: list[float]


def join_world(rank: int, size: int, rendezvous: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=size, timeout=GLOO_TIMEOUT
    )
    GROUPS.install()


class Groups:
    """Makes each process group once and lends it to job after job.

    Gloo keeps three threads for every group, and its poll wakes a hundred times a second: the groups of a few hundred
    jobs would take half the machine, and leaving them does not end them while DTensor remembers ways through them.
    Calls of one job never share a group.
    """

    def __init__(self) -> None:
        self._made: dict[tuple, list[dist.ProcessGroup]] = {}
        self._lent: Counter = Counter()
        self._new_group = dist.new_group

    def install(self) -> None:
        """Stand in for ``torch.distributed.new_group`` in this process."""
        for module in (dist, dist.distributed_c10d, dist.device_mesh):
            module.new_group = self.lend

    def lend(self, ranks=None, *, backend=None, group_desc=None, **settings):
        """The group of these ranks that this job has not been given yet."""
        key = (None if ranks is None else tuple(ranks), backend, group_desc)
        groups = self._made.setdefault(key, [])
        if self._lent[key] == len(groups):
            groups.append(self._new_group(ranks, backend=backend, group_desc=group_desc, **settings))
        self._lent[key] += 1
        return groups[self._lent[key] - 1]

    def take_back(self) -> None:
        """A job has ended."""
        self._lent.clear()


GROUPS = Groups()


def run(job: Job) -> Result:
    trainer, records = run_job(job, device=CPU)
    del trainer
    return Result(losses=[r.loss for r in records], norms=[r.gradient_norm for r in records])


def count(job: Job) -> list[tuple[Counted, int]]:
    """Collectives of the second optimizer step, or the third: DDP agrees on its buckets in the first two."""
    mesh = make_mesh(job.layout, device_type="cpu")
    feed = open_feed(job, data_parallel_rank=mesh.data_parallel_rank, vocab_size=256, device=CPU)
    trainer = make_trainer(job, mesh, device=CPU, source=feed)
    for _ in range(2 if uses_ddp(layout=job.layout, recipe=job.recipe) else 1):
        trainer.step()
    with CollectiveCounter() as counter:
        trainer.step()
    feed.close()
    return list(counter.calls.items())


def records(job: Job) -> list[StepRecord]:
    return run_job(job, device=CPU)[1]


def bias_run(job: Job) -> tuple[list[float], list, dict[str, list[float]]]:
    """Losses, counts of experts, and the biases of routers after the last step."""
    trainer, records = run_job(job, device=CPU)
    blocks = sparse_blocks_of(trainer.built.decoders)
    biases = {
        f"{layer}.{index}": (bias.full_tensor() if isinstance(bias, DTensor) else bias).flatten().tolist()
        for layer, block in blocks.items()
        for index, bias in enumerate(biases_of(block))
    }
    return [r.loss for r in records], [r.expert_counts for r in records], biases

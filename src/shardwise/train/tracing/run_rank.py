"""One step of one rank, traced: the runtime's own trainer on fake tensors in a fake process group."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.distributed.fake_pg import FakeStore

from shardwise.train.data.batches import Batch
from shardwise.train.job import Job
from shardwise.train.loop import Trainer, make_trainer
from shardwise.train.mesh import Mesh, make_mesh
from shardwise.train.parameters import local_part
from shardwise.train.passes import Passes
from shardwise.train.scaling import LossScale
from shardwise.train.tracing.cuda_kernels import CudaKernels, HostStorages
from shardwise.train.tracing.even_routing import EvenRouting
from shardwise.train.tracing.recorder import Log, Recorder
from shardwise.train.tracing.whereabouts import Whereabouts

CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class RankLog:
    """The log of one rank's step, and what is needed to read it."""

    log: Log
    num_blocks: int
    vocab_rows: int
    """Rows of the head on this rank; 0 without one."""


@contextmanager
def fake_world(*, rank: int, world_size: int) -> Iterator[None]:
    """A process group whose other ranks do not exist: collectives return at once and move nothing."""
    dist.init_process_group("fake", rank=rank, world_size=world_size, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()


class FakeFeed:
    """Micro-batches without values."""

    def __init__(self, job: Job) -> None:
        self.shape = (job.recipe.micro_batch_size, job.recipe.seq_len)
        self.num_microbatches = job.num_microbatches

    def next_step(self) -> list[Batch]:
        """The micro-batches of a step."""
        return [self._batch() for _ in range(self.num_microbatches)]

    def _batch(self) -> Batch:
        ids, labels, positions = (torch.zeros(self.shape, dtype=torch.int64) for _ in range(3))
        return Batch(inputs=ids, labels=labels, positions=positions, next_position=0)


class WatchedPasses:
    """The passes of a step, told apart from the optimizer that follows them."""

    def __init__(self, passes: Passes, trainer: Trainer, recorder: Recorder, whereabouts: Whereabouts) -> None:
        self.passes, self.trainer, self.recorder, self.whereabouts = passes, trainer, recorder, whereabouts

    def run(self, batches: list[Batch], *, unit_ratio: float) -> tuple[torch.Tensor, torch.Tensor]:
        """Run them; the gradients they leave are known by name."""
        self.whereabouts.begin_step()
        sums = self.passes.run(batches, unit_ratio=unit_ratio)
        gradients = [entry.parameter.grad for entry in self.trainer.trained if entry.parameter.grad is not None]
        self.recorder.mark([local_part(gradient) for gradient in gradients], "gradients")
        self.whereabouts.end_passes()
        return sums


def trace_rank(job: Job, *, rank: int) -> RankLog:
    """The log of the second step of one rank: in the first, optimizers make their states and FSDP2 its groups."""
    recorder = Recorder()
    with fake_world(rank=rank, world_size=job.layout.world_size):
        mesh = make_mesh(job.layout, device_type=CPU.type)
        host = HostStorages(recorder.host)
        with FakeTensorMode(allow_non_fake_inputs=True), recorder, CudaKernels(host), EvenRouting():
            return _steps(job, mesh, recorder)


def _steps(job: Job, mesh: Mesh, recorder: Recorder) -> RankLog:
    trainer = make_trainer(job, mesh, device=CPU, source=FakeFeed(job))
    # fp16 looks at its gradients to decide whether to step; without values it steps.
    trainer.scale = LossScale(is_active=False, ratio=trainer.scale.ratio)
    decoders = trainer.built.decoders
    blocks = [block for decoder in decoders for block in decoder.blocks()]
    heads = [decoder.lm_head for decoder in decoders if decoder.lm_head is not None]
    whereabouts = Whereabouts(decoders, blocks, has_head=bool(heads))
    recorder.whereabouts = whereabouts
    recorder.mark([entry.local for entry in trainer.trained], "parameters")
    recorder.mark([buffer for decoder in decoders for buffer in decoder.buffers()], "parameters")
    trainer.passes = WatchedPasses(trainer.passes, trainer, recorder, whereabouts)
    recorder.answers_votes = job.layout.pp > 1
    trainer.step()
    recorder.answers_votes = False
    states = [value for state in trainer.optimizer.state.values() for value in state.values()]
    recorder.mark([value for value in states if isinstance(value, torch.Tensor)], "optimizer")
    recorder.begin()
    trainer.step()
    whereabouts.close()
    rows = local_part(heads[0].weight).shape[0] if heads else 0
    return RankLog(log=recorder.log, num_blocks=len(blocks), vocab_rows=rows)

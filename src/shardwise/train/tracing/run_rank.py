"""One step of one rank, traced: the runtime's own trainer on fake tensors in a fake process group."""

import logging
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch
import torch.distributed as dist
from torch.overrides import TorchFunctionMode

import shardwise
from shardwise.errors import ShardwiseError
from shardwise.train.build import made_as, weights_dtype
from shardwise.train.data.batches import Batch
from shardwise.train.decoder.model import Decoder
from shardwise.train.feed import Feed
from shardwise.train.foreign import ForeignModule
from shardwise.train.job import Job
from shardwise.train.loop import Trainer, make_trainer
from shardwise.train.mesh import make_mesh
from shardwise.train.parameters import local_part
from shardwise.train.passes import Passes
from shardwise.train.scaling import LossScale
from shardwise.train.torch_private import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    fake_store,
)
from shardwise.train.tracing.cuda_kernels import CudaKernels, HostKernels, HostStorages
from shardwise.train.tracing.even_routing import EvenRouting
from shardwise.train.tracing.recorder import ALLOCATION_UNIT_BYTES, Log, Recorder
from shardwise.train.tracing.user_module import ModuleError, ModuleFactory
from shardwise.train.tracing.whereabouts import Whereabouts

CPU = torch.device("cpu")
FakeTensorError = (DataDependentOutputException, DynamicOutputShapeException)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankLog:
    """The log of one rank's step, and what is needed to read it."""

    log: Log
    num_blocks: int
    num_vocab_rows: int
    """Rows of the head on this rank; 0 without one."""
    unit_bytes: int = ALLOCATION_UNIT_BYTES
    """Bytes to whose multiples the allocator rounds requests up."""


@contextmanager
def fake_world(*, rank: int, world_size: int) -> Iterator[None]:
    """A process group whose other ranks do not exist: collectives return at once and move nothing."""
    hook = sys.excepthook
    dist.init_process_group("fake", rank=rank, world_size=world_size, store=fake_store())
    try:
        yield
    finally:
        dist.destroy_process_group()
        sys.excepthook = hook  # torch puts the rank before every line of a traceback


class FakeFeed:
    """Micro-batches without values; those that are not run wait on the device as well."""

    def __init__(self, job: Job, *, num_waiting: int) -> None:
        self.shape = (job.recipe.micro_batch_size, job.recipe.seq_len)
        self.num_microbatches, self.num_waiting = job.num_microbatches, num_waiting
        self.num_first = job.num_microbatches if job.layout.pp > 1 else min(2, job.num_microbatches)
        """Micro-batches of the first step: schedules are made for their number; elsewhere the first makes gradients,
        the second adds to them, and more leave what two do."""
        self.waiting: list[Batch] = []

    def next_step(self) -> list[Batch]:
        """The micro-batches of a step."""
        self.waiting = [self._batch() for _ in range(self.num_waiting)]
        count, self.num_first = self.num_first, self.num_microbatches
        return [self._batch() for _ in range(count)]

    def _batch(self) -> Batch:
        ids, labels, positions = (torch.zeros(self.shape, dtype=torch.int64) for _ in range(3))
        return Batch(inputs=ids, labels=labels, positions=positions, next_position=0)


class WatchedPasses:
    """The passes of a step, told apart from the optimizer that follows them."""

    def __init__(self, passes: Passes, trainer: Trainer, recorder: Recorder, whereabouts: Whereabouts) -> None:
        self.passes, self.trainer, self.recorder, self.whereabouts = passes, trainer, recorder, whereabouts

    def run(self, batches: Sequence[Batch], *, unit_ratio: float) -> tuple[torch.Tensor, torch.Tensor]:
        """Run the passes; the gradients that they leave are known by name."""
        self.whereabouts.begin_step()
        sums = self.passes.run(batches, unit_ratio=unit_ratio)
        gradients = [entry.parameter.grad for entry in self.trainer.trained if entry.parameter.grad is not None]
        self.recorder.mark([local_part(gradient) for gradient in gradients], "gradients")
        self.whereabouts.end_passes()
        return sums


def trace_rank(job: Job, *, rank: int, factory: ModuleFactory | None = None, num_waiting: int = 0) -> RankLog:
    """The log of the second step of one rank: in the first, optimizers make their states and FSDP2 its groups.

    Raises:
        ModuleError: a value decides what the model computes.
    """
    computes_here = job.device == "cpu"
    recorder = Recorder()
    with warnings.catch_warnings(), fake_world(rank=rank, world_size=job.layout.world_size):
        warnings.simplefilter("ignore")  # of torch, about devices that are not there
        logging.getLogger(FakeTensorMode.__module__).disabled = True  # what fails is said once, by our error
        mesh = make_mesh(job.layout, device_type=CPU.type)
        kernels = HostKernels() if computes_here else CudaKernels(HostStorages(recorder.host))
        modes = (kernels, EvenRouting())
        with FakeTensorMode(allow_non_fake_inputs=True), recorder, modes[0], modes[1]:
            with _without_values(), made_as(weights_dtype(job)):
                given = factory() if factory is not None else None
            with _without_values(), _as_the_modules(given):
                feed = FakeFeed(job, num_waiting=num_waiting)
                trainer = make_trainer(job, mesh, device=CPU, source=cast("Feed", feed), given=given)
                return _steps(trainer, recorder, modes)


def _steps(trainer: Trainer, recorder: Recorder, modes: Sequence[TorchFunctionMode]) -> RankLog:
    job = trainer.job
    # fp16 looks at its gradients to decide whether to step; without values it steps.
    trainer.scale = LossScale(is_active=False, ratio=trainer.scale.ratio)
    decoders = trainer.built.decoders
    blocks = [block for decoder in decoders for block in decoder.blocks()]
    has_head = any(getattr(decoder, "lm_head", None) is not None for decoder in decoders) or job.layout.pp == 1
    whereabouts = Whereabouts(decoders, blocks, has_head=has_head, modes=modes)
    recorder.whereabouts = whereabouts
    recorder.mark([entry.local for entry in trainer.trained], "parameters")
    recorder.mark(trainer.built.halves.tensors(), "parameters")
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
    parts = job.layout.tp * max(
        (decoder.vocabulary_ranks for decoder in decoders if isinstance(decoder, Decoder)), default=1
    )
    rows = int(str(job.model_config["vocab_size"])) // parts if has_head else 0
    return RankLog(
        log=recorder.log,
        num_blocks=len(blocks),
        num_vocab_rows=rows,
        unit_bytes=1 if job.device == "cpu" else ALLOCATION_UNIT_BYTES,
    )


@contextmanager
def _without_values() -> Iterator[None]:
    """Say which code asked for a value, where only shapes are known."""
    try:
        yield
    except FakeTensorError as error:
        raise ModuleError(
            f"values decide what the model computes ({error.func} in {_place_of(error)}), and a trace has only shapes",
            code="trace-values",
            fix="trace a variant without .item(), .tolist(), nonzero and branches on tensors",
        ) from error


@contextmanager
def _as_the_modules(given: ForeignModule | None) -> Iterator[None]:
    """Say that a step failed in the module that was given."""
    try:
        yield
    except (ShardwiseError, *FakeTensorError):
        raise
    except Exception as error:
        if given is None:
            raise
        first = (str(error).strip().splitlines() or [""])[0]
        raise ModuleError(
            f"a step of {type(given.inner).__name__} fails at {_place_of(error)}: "
            f"{type(error).__name__}: {first[:200]}",
            code="trace-module",
            fix="make module(torch.zeros(1, seq_len, dtype=torch.long)) return logits or a loss",
        ) from error


def _place_of(error: BaseException) -> str:
    """The innermost line that is neither torch's nor ours."""
    frames = traceback.extract_tb(error.__traceback__)
    inside = [Path(str(package.__file__)).parent for package in (torch, shardwise)]
    outside = [frame for frame in frames if not any(Path(frame.filename).is_relative_to(path) for path in inside)]
    return f"{outside[-1].filename}:{outside[-1].lineno}" if outside else "torch"

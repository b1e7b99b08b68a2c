"""Validation while a run trains: the loss of data that it never learns from, and what the model writes after prompts.

Ranks go forward over the same samples in the same order under every layout, without gradients, dropout or a place in
the training data, so that a run that validates trains what one that does not trains.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field

import torch
from torch.distributed.fsdp import FSDPModule

from shardwise.train.build import Built
from shardwise.train.data.batches import GlobalBatches
from shardwise.train.data.mixture import FilledUp
from shardwise.train.data.order import SampleOrder
from shardwise.train.data.samples import Samples
from shardwise.train.data.validation import open_validation
from shardwise.train.exchange import world_sum
from shardwise.train.generation import Generator, open_generator
from shardwise.train.job import Job
from shardwise.train.mesh import Mesh
from shardwise.train.passes import EvaluatingPasses

__all__ = ["Validation", "ValidationState", "Validator", "make_validator", "perplexity"]


def perplexity(loss: float) -> float:
    """The number of equally likely tokens that a loss per token stands for.

    >>> round(perplexity(2.302585), 3)
    10.0
    """
    return math.exp(loss) if loss < 700 else math.inf  # exp overflows beyond 709


@dataclass(frozen=True, slots=True, kw_only=True)
class Validation:
    """One look at the validation data."""

    step: int
    loss: float
    num_tokens: int


@dataclass(slots=True, kw_only=True)
class ValidationState:
    """Number and losses of a run's validations so far; part of every checkpoint."""

    num_validations: int = 0
    first_loss: float = math.inf
    last_loss: float = math.inf
    best_loss: float = math.inf
    best_step: int = 0
    num_without_better: int = 0
    """Validations in a row that were not better than the best before them."""

    def take(self, found: Validation) -> None:
        """Count one more; only a lower loss is better."""
        self.first_loss = found.loss if not self.num_validations else self.first_loss
        self.num_validations += 1
        self.last_loss = found.loss
        self.num_without_better += 1
        if found.loss < self.best_loss:
            self.best_loss, self.best_step, self.num_without_better = found.loss, found.step, 0

    def state_dict(self) -> dict[str, float]:
        """The fields by name, as a checkpoint holds them."""
        return asdict(self)

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Continue with what a checkpoint holds; one of a run that did not validate holds nothing."""
        for name, value in state.items():
            setattr(self, name, float(value) if name.endswith("_loss") else int(value))


@dataclass(slots=True, kw_only=True)
class Validator:
    """Looks at the validation data every so many steps."""

    job: Job
    built: Built
    passes: EvaluatingPasses
    samples: Samples
    rank: int
    """Place among the ranks that read other samples."""
    device: torch.device
    generator: Generator | None = None
    state: ValidationState = field(default_factory=ValidationState)

    def is_due(self, step: int) -> bool:
        """Whether to look after this step; the last one is always looked at."""
        return step % self.job.validation.every_steps == 0 or step == self.job.num_steps

    @property
    def is_patience_over(self) -> bool:
        """Whether as many validations in a row as the job allows brought no lower loss."""
        patience = self.job.validation.num_patience
        return 0 < patience <= self.state.num_without_better

    def run(self, step: int) -> Validation:
        """Go over all validation data, and write after the prompts; every rank calls it, and finds the same."""
        with torch.no_grad(), _looking(self.built):
            loss, num_tokens = self._summed()
            if self.generator is not None:
                self.generator.run(step)
        found = Validation(step=step, loss=loss / max(1, num_tokens), num_tokens=num_tokens)
        self.state.take(found)
        return found

    def _summed(self) -> tuple[float, int]:
        batches = GlobalBatches(
            self.samples,
            order=SampleOrder(num_samples=self.samples.num_samples, is_shuffled=False),
            dp_rank=self.rank,
            dp_size=self.job.layout.data_parallel_size,
            micro_batch_size=self.job.recipe.micro_batch_size,
        )
        sums = torch.zeros(2, dtype=torch.float64, device=self.device)
        for _ in range(self.samples.num_samples // self.job.global_batch_size):
            step = [next(batches).on(self.device) for _ in range(self.job.num_microbatches)]
            loss_sum, num_tokens = self.passes.evaluate(step)
            sums += torch.stack([loss_sum.double(), num_tokens.double()])
        loss, tokens = world_sum(sums).tolist()
        return loss, round(tokens)


@contextmanager
def _looking(built: Built) -> Iterator[None]:
    """Turn dropout off within the block; afterwards FSDP2 holds shards alone, as after backward."""
    for chunk in built.chunks:
        chunk.eval()
    try:
        yield
    finally:
        for chunk in built.chunks:
            chunk.train()
            for module in chunk.modules():
                if isinstance(module, FSDPModule):
                    module.reshard()


def make_validator(
    job: Job, mesh: Mesh, built: Built, passes: EvaluatingPasses, device: torch.device
) -> Validator | None:
    """The validator of a job; ``None`` where the job never validates."""
    if not job.validation.every_steps:
        return None
    return Validator(
        job=job,
        built=built,
        passes=passes,
        samples=FilledUp(samples=open_validation(job), num_together=job.global_batch_size),
        rank=mesh.data_parallel_rank,
        device=device,
        generator=open_generator(job, built, device=device),
    )

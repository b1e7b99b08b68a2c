"""The data of one rank, an optimizer step at a time."""

from typing import Any

import torch

from shardwise.train.data import SampleOrder, open_samples
from shardwise.train.data.batches import Batch, GlobalBatches
from shardwise.train.data.prefetch import PrefetchedBatches
from shardwise.train.job import Job


class Feed:
    """Micro-batches on the device, made ahead in a thread.

    Ranks that differ only in tp, cp or pp see the same ones; what a step holds depends on the position in the global
    order of samples alone, never on the layout.
    """

    def __init__(self, batches: PrefetchedBatches, num_microbatches: int) -> None:
        self.batches, self.num_microbatches = batches, num_microbatches
        self._told_s = 0.0

    def next_step(self) -> list[Batch]:
        """The micro-batches of the next optimizer step."""
        return [next(self.batches) for _ in range(self.num_microbatches)]

    def take_waited_s(self) -> float:
        """Time that training stood still for data since this was last asked."""
        waited_s, self._told_s = self.batches.waited_s - self._told_s, self.batches.waited_s
        return waited_s

    def state_dict(self) -> dict[str, Any]:
        """The run's place in the data."""
        return dict(self.batches.state_dict())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        self.batches.load_state_dict(state)  # type: ignore[arg-type]

    def close(self) -> None:
        """Stop reading ahead."""
        self.batches.close()


def open_feed(job: Job, *, data_parallel_rank: int, vocab_size: int, device: torch.device) -> Feed:
    """The data of one data-parallel rank; text is tokenised once and then read from a cache."""
    recipe, dp_size = job.recipe, job.layout.data_parallel_size
    samples = open_samples(job.data, seq_len=recipe.seq_len, vocab_size=vocab_size)
    source = GlobalBatches(
        samples,
        order=SampleOrder(num_samples=samples.num_samples, seed=job.data.seed, is_shuffled=job.data.is_shuffled),
        dp_rank=data_parallel_rank,
        dp_size=dp_size,
        micro_batch_size=recipe.micro_batch_size,
    )
    return Feed(PrefetchedBatches(source, device=device), job.num_microbatches)

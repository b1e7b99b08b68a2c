"""Micro-batches of one data-parallel rank, dealt from one global position."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from shardwise.train.data.order import SampleOrder
from shardwise.train.data.samples import Sample, Samples
from shardwise.train.data.state import DataState, require_same_data, state_at

__all__ = ["Batch", "DataState", "GlobalBatches"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """One micro-batch: ``B`` sequences of ``S`` tokens."""

    inputs: torch.Tensor
    """``(B, S)``, int64."""
    labels: torch.Tensor
    """``(B, S)``, int64, already shifted; -100 where nothing is predicted."""
    positions: torch.Tensor
    """``(B, S)``, int64: place of each token in its document."""
    next_position: int
    """The global position once every rank has taken this micro-batch."""

    def pinned(self) -> "Batch":
        """This batch in page-locked memory, from which a GPU copies while it computes."""
        return Batch(
            inputs=self.inputs.pin_memory(),
            labels=self.labels.pin_memory(),
            positions=self.positions.pin_memory(),
            next_position=self.next_position,
        )

    def on(self, device: torch.device) -> "Batch":
        """This batch on a device; the copy does not wait when the batch is in pinned memory."""
        return Batch(
            inputs=self.inputs.to(device, non_blocking=True),
            labels=self.labels.to(device, non_blocking=True),
            positions=self.positions.to(device, non_blocking=True),
            next_position=self.next_position,
        )


class GlobalBatches:
    """An endless iterator over the micro-batches of one data-parallel rank.

    Micro-batch after micro-batch, ``dp_size * micro_batch_size`` positions are taken from one global order, and rank
    ``dp_rank`` reads its own ``micro_batch_size`` of them. The only state is the global position, so a run continues
    with the next unseen sample on any number of ranks, whatever the micro-batch.
    """

    def __init__(
        self, samples: Samples, *, order: SampleOrder, dp_rank: int, dp_size: int, micro_batch_size: int
    ) -> None:
        self._samples = samples
        self._order = order
        self._dp_rank = dp_rank
        self._dp_size = dp_size
        self._micro_batch_size = micro_batch_size
        self._position = 0

    @property
    def position(self) -> int:
        """Samples that all ranks together have taken."""
        return self._position

    @property
    def epoch(self) -> int:
        """How many times the whole data have been taken."""
        return self._order.epoch_of(self._position)

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        first = self._position + self._dp_rank * self._micro_batch_size
        numbers = self._order.samples_at(np.arange(first, first + self._micro_batch_size))
        self._position += self._dp_size * self._micro_batch_size
        return collate([self._samples.sample(int(number)) for number in numbers], next_position=self._position)

    def state_dict(self) -> DataState:
        """The state from which another run goes on with the next unseen sample."""
        return state_at(self._position, samples=self._samples, order=self._order)

    def load_state_dict(self, state: DataState) -> None:
        """Go on where the state was taken; the data must be the same, the ranks need not be."""
        require_same_data(self.state_dict(), state)
        self._position = state["position"]


def collate(samples: list[Sample], *, next_position: int) -> Batch:
    """Samples stacked into tensors."""
    return Batch(
        inputs=torch.from_numpy(np.stack([sample.inputs for sample in samples])),
        labels=torch.from_numpy(np.stack([sample.labels for sample in samples])),
        positions=torch.from_numpy(np.stack([sample.positions for sample in samples])),
        next_position=next_position,
    )

"""Where a run stands in its data, and whether another run may go on from there; without torch."""

from collections.abc import Mapping
from typing import TypedDict

from shardwise.errors import DataError
from shardwise.train.data.order import SampleOrder
from shardwise.train.data.samples import Samples

__all__ = ["DataState", "require_same_data", "state_at"]


class DataState(TypedDict):
    """Where the data stand: the same on every rank, and without a word about how many ranks there are."""

    position: int
    seed: int
    is_shuffled: bool
    num_samples: int
    fingerprint: str


COMPARED = ("seed", "is_shuffled", "num_samples", "fingerprint")
"""Facts that must be equal, those first in which a difference is easiest to see."""


def state_at(position: int, *, samples: Samples, order: SampleOrder) -> DataState:
    """The state once ``position`` samples were taken."""
    return DataState(
        position=position,
        seed=order.seed,
        is_shuffled=order.is_shuffled,
        num_samples=order.num_samples,
        fingerprint=samples.fingerprint,
    )


def require_same_data(own: Mapping[str, object], saved: Mapping[str, object]) -> None:
    """Return when a run's data are those a checkpoint was made with, as far as ``own`` knows them.

    Raises:
        DataError: they differ; the first difference is named.
    """
    for key in COMPARED:
        if key in own and own[key] != saved.get(key):
            raise DataError(
                f"the checkpoint was made with other data: {key} was {saved.get(key)}, now it is {own[key]}",
                code="data-changed",
                fix="give the same data, tokenizer, seed and seq_len as the run that made the checkpoint",
            )

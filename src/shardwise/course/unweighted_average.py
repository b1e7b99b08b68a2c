"""The scaling lesson's data-parallel program: a mean over shards, and the mean over samples that it should be."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

BATCH, INPUTS, OUTPUTS, SEED = 64, 32, 16, 42
"""The lesson's sizes: np.random.seed(42), 64 samples of 32 numbers, 16 outputs."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardAverage:
    """Loss and length of the gradient after averaging, in the lesson's units, and how far it is from the batch's."""

    loss_ratio: float
    gradient_norm_ratio: float
    error_fraction: float
    """Length of the difference to the gradient of the whole batch, over its length."""


def _data() -> tuple[Floats, Floats]:
    generator = np.random.RandomState(SEED)
    data = generator.randn(BATCH, INPUTS)
    return data, generator.randn(INPUTS, OUTPUTS)


def _loss_and_gradient(batch: Floats, weight: Floats) -> tuple[float, Floats]:
    """The lesson's: a mean over samples and outputs, but the gradient of the sum over outputs."""
    output = batch @ weight
    return float(np.mean(output**2)), 2 * batch.T @ output / len(batch)


def whole_batch() -> ShardAverage:
    """One device."""
    data, weight = _data()
    loss, gradient = _loss_and_gradient(data, weight)
    return ShardAverage(loss_ratio=loss, gradient_norm_ratio=float(np.linalg.norm(gradient)), error_fraction=0.0)


def averaged_over_shards(num_shards: int, *, is_weighted: bool = False) -> ShardAverage:
    """Shards that differ by at most one sample, averaged as the lesson does, or weighted by their samples.

    >>> [round(averaged_over_shards(shards).gradient_norm_ratio, 4) for shards in (1, 2, 4, 8)]
    [53.0517, 53.0517, 53.0517, 53.0517]
    """
    data, weight = _data()
    shards = np.array_split(data, num_shards)
    found = [_loss_and_gradient(shard, weight) for shard in shards]
    shares = [len(shard) / BATCH if is_weighted else 1 / num_shards for shard in shards]
    loss = sum(share * one for share, (one, _) in zip(shares, found, strict=True))
    gradient = sum(share * one for share, (_, one) in zip(shares, found, strict=True))
    _, exact = _loss_and_gradient(data, weight)
    return ShardAverage(
        loss_ratio=loss,
        gradient_norm_ratio=float(np.linalg.norm(gradient)),
        error_fraction=float(np.linalg.norm(gradient - exact) / np.linalg.norm(exact)),
    )


def derivative_ratio() -> float:
    """The lesson's gradient over the derivative of the loss that it prints, by finite differences."""
    data, weight = _data()
    _, gradient = _loss_and_gradient(data, weight)
    step = 1e-6 * gradient / np.linalg.norm(gradient)
    rise = _loss_and_gradient(data, weight + step)[0] - _loss_and_gradient(data, weight - step)[0]
    return float(np.linalg.norm(gradient) / (rise / 2e-6))

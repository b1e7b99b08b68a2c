"""AdamW on a vector: what a rank does with its shard is what one device does with everything, element by element."""

from dataclasses import dataclass

import numpy as np

from shardwise.course.numerics.arrays import Array


@dataclass(frozen=True, slots=True, kw_only=True)
class AdamW:
    """Settings of the optimizer: those of Llama 2 (arXiv:2307.09288, section 2.2) but for the larger steps.

    An epsilon below the rounding of small gradients would magnify it: ``g / (|g| + epsilon)`` is a sign.
    """

    learning_rate_ratio: float = 1e-2
    """Step relative to a normalised gradient."""
    first_decay_ratio: float = 0.9
    second_decay_ratio: float = 0.95
    epsilon_ratio: float = 1e-5
    weight_decay_ratio: float = 0.1
    max_norm: float = 1.0
    """Gradients are scaled down to this norm."""


@dataclass(slots=True, kw_only=True)
class Moments:
    """The running averages of a vector's gradient and of its square."""

    first: Array
    second: Array
    num_steps: int = 0


def no_moments(weights: Array) -> Moments:
    """The moments before the first step, which are zero."""
    return Moments(first=np.zeros_like(weights), second=np.zeros_like(weights))


def update(weights: Array, gradient: Array, moments: Moments, settings: AdamW) -> Array:
    """The weights after one step; the moments are brought up to date.

    Source: Loshchilov and Hutter 2017, arXiv:1711.05101, algorithm 2.
    """
    moments.num_steps += 1
    b1, b2 = settings.first_decay_ratio, settings.second_decay_ratio
    moments.first = b1 * moments.first + (1 - b1) * gradient
    moments.second = b2 * moments.second + (1 - b2) * gradient * gradient
    mean = moments.first / (1 - b1**moments.num_steps)
    deviation = np.sqrt(moments.second / (1 - b2**moments.num_steps))
    step = mean / (deviation + settings.epsilon_ratio) + settings.weight_decay_ratio * weights
    return weights - settings.learning_rate_ratio * step


def clip_factor(norm: float, settings: AdamW) -> float:
    """What all gradients are multiplied by; it has to be the same on every rank, hence the norm of the whole model.

    >>> clip_factor(4.0, AdamW(max_norm=1.0))
    0.25
    """
    return min(1.0, settings.max_norm / norm) if norm > 0 else 1.0

"""Plans of tiny models, re-enacted beside one device."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from shapes import plan
from shardwise.course.numerics.arrays import Weights
from shardwise.course.numerics.batch import Batch, random_batch
from shardwise.course.numerics.reenact import (
    Reenactment,
    gradient_error,
    one_device,
    reenact,
    weight_error,
)
from shardwise.course.numerics.tiny_model import initial_weights, tiny_model
from shardwise.layout import Layout

EXACT = 1e-12
ROUNDING = 1e-4
"""Of fp32: 2**-24 a rounding, some hundred terms in a sum, and gradients that cancel. Usual is 1e-6; with a width of 2,
where a norm's gradient is a small difference of large numbers, 3.2e-5 was seen."""


ROUNDINGS = 16
"""How much further than one device moved by one rounding a layout may be, which rounds every sum in another order: 1.4
times was the most in 237 plans drawn at random."""


@dataclass(frozen=True)
class Both:
    found: Reenactment
    expected: Reenactment
    again: Callable[[int], Reenactment]
    """The one device once more, with first weights that a seed moves by their last digit."""

    @property
    def gradient_error(self):
        return gradient_error(self.found, self.expected)

    @property
    def error(self):
        return max(difference(self.found, self.expected), self.found.copy_error)

    @property
    def limit(self):
        """What rounding may leave of ``error``.

        AdamW divides a gradient by its own size, a norm of two channels leaves a small difference of large numbers, and
        the next step begins from both. How much they magnify is seen on the one device: moved by a rounding, it is that
        far from itself.
        """
        moved = (difference(self.again(seed), self.expected) for seed in range(3))
        return EXACT if self.error < EXACT else max(EXACT, ROUNDINGS * max(moved))


def difference(found: Reenactment, expected: Reenactment) -> float:
    """The worst of losses, gradients and updated weights."""
    pairs = zip(found.losses, expected.losses, strict=True)
    losses = max(abs(one - other) / other for one, other in pairs)
    return max(losses, gradient_error(found, expected), weight_error(found, expected))


def moved_by_a_rounding(weights: Weights, seed: int) -> Weights:
    """Every weight up or down by its last digit."""
    random = np.random.default_rng(seed)
    return {key: np.nextafter(one, one + random.choice((-1, 1), one.shape)) for key, one in weights.items()}


def both(
    layout: Layout,
    *,
    engine="fsdp2",
    model=None,
    seq_len=16,
    num_microbatches=1,
    num_sequences=None,
    num_steps=2,
    dtype="float64",
    options=None,
    **recipe,
) -> Both:
    """A layout and one device, trained on the same batches from the same weights."""
    spec = model or tiny_model()
    made = plan(
        spec,
        engine=engine,
        layout=layout,
        seq_len=seq_len,
        micro_batch_size=1,
        global_batch_size=num_microbatches * layout.data_parallel_size,
        precision="fp32",
        **recipe,
    )
    batches = some_batches(spec, num_sequences or made.global_batch_size, seq_len, num_steps)
    weights = initial_weights(spec, dtype=dtype)
    return Both(
        found=reenact(made, weights, batches, options),
        expected=one_device(made, weights, batches, options),
        again=lambda seed: one_device(made, moved_by_a_rounding(weights, seed), batches, options),
    )


def some_batches(spec, num_sequences, seq_len, num_steps) -> list[Batch]:
    return [
        random_batch(num_sequences=num_sequences, seq_len=seq_len, vocab_size=spec.vocab_size, seed=step)
        for step in range(num_steps)
    ]

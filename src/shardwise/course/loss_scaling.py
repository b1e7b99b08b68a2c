"""Training a small model whose backward pass runs in a narrow format, with and without a scaled loss."""

from dataclasses import dataclass

import numpy as np

from shardwise.course.number_formats import Floats, FormatName, rounded

NUM_SAMPLES = 4096
NUM_WEIGHTS = 32
LEARNING_RATE = 0.25
TARGET_SIZE = 2e-5
"""The size of the true weights: the error of a sample is about 1e-4, over 4,096 samples 3e-8, and fp16 ends at 6e-8."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalerSettings:
    """How the factor on the loss changes; a constant factor never does."""

    first_ratio: float
    is_dynamic: bool = False
    growth_ratio: float = 2.0
    backoff_ratio: float = 0.5
    num_good_steps: int = 8
    """Steps without overflow after which the factor grows. torch.amp.GradScaler: 2,000, the other values as here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaledStep:
    """One optimizer step."""

    index: int
    scale_ratio: float
    """The factor during this step."""
    vanished_fraction: float
    """Share of the errors that reach the backward pass as 0."""
    is_skipped: bool
    """Whether a gradient was infinite or not a number, so that nothing was updated."""
    loss_ratio: float
    """Loss after the step over the loss before the first step."""


def train(name: FormatName, scaler: ScalerSettings, *, num_steps: int, seed: int) -> tuple[ScaledStep, ...]:
    """Least squares by gradient descent; the errors and gradients pass through the format, weights stay in fp32.

    The mean over 4,096 samples makes the error of each of them small, as the mean over the tokens of a batch does.
    """
    generator = np.random.default_rng(seed)
    inputs = generator.standard_normal((NUM_SAMPLES, NUM_WEIGHTS)).astype(np.float32)
    targets = inputs @ generator.standard_normal(NUM_WEIGHTS).astype(np.float32) * np.float32(TARGET_SIZE)
    weights = np.zeros(NUM_WEIGHTS, dtype=np.float32)
    first_loss, scale, good_steps = _loss(inputs, targets, weights), scaler.first_ratio, 0
    steps = []
    for index in range(num_steps):
        errors: Floats = ((inputs @ weights - targets) / NUM_SAMPLES).astype(np.float32)
        gradient, vanished = _backward(inputs, errors, scale, name)
        is_skipped = not bool(np.isfinite(gradient).all())
        if not is_skipped:
            weights = (weights - LEARNING_RATE * gradient / np.float32(scale)).astype(np.float32)
        steps.append(
            ScaledStep(
                index=index,
                scale_ratio=scale,
                vanished_fraction=vanished,
                is_skipped=is_skipped,
                loss_ratio=_loss(inputs, targets, weights) / first_loss,
            )
        )
        good_steps = 0 if is_skipped else good_steps + 1
        if scaler.is_dynamic and is_skipped:
            scale *= scaler.backoff_ratio
        elif scaler.is_dynamic and good_steps == scaler.num_good_steps:
            scale, good_steps = scale * scaler.growth_ratio, 0
    return tuple(steps)


def _backward(inputs: Floats, errors: Floats, scale: float, name: FormatName) -> tuple[Floats, float]:
    """The gradient as the format holds it, and the share of errors that vanished on the way."""
    scaled = rounded(errors * np.float32(scale), name)
    vanished = float(np.mean(scaled[errors != 0] == 0)) if errors.any() else 0.0
    with np.errstate(invalid="ignore", over="ignore"):
        return rounded(inputs.T @ scaled, name), vanished


def _loss(inputs: Floats, targets: Floats, weights: Floats) -> float:
    return float(np.mean((inputs @ weights - targets).astype(np.float64) ** 2))

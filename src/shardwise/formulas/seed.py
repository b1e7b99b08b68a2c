"""The seeds' own memory of one GPU: 2 + 2 + 8 bytes per parameter, decimal GB, four tensors per layer.

This is the convention ``seed``. It is reproduced exactly, with its omissions (no fp32 master copy, no logits, fallback
activations that are never sharded), so that a reader can start from the figures the lessons print and then see where
and why reality differs. The text is the course lesson "Scaling: Distributed Training, FSDP, DeepSpeed" (phase 10),
cited below as *scaling lesson*.
"""

from dataclasses import dataclass
from typing import Literal

from shardwise.optimizers import SeedOptimizer
from shardwise.units import GB

HALF_BYTES = 2
"""fp16 or bf16 weights and gradients."""
ADAM_BYTES_PER_PARAM = 8
"""Two fp32 moments; the fp32 master copy is left out."""
SGD_BYTES_PER_PARAM = 4
TENSORS_PER_LAYER = 4
FALLBACK_ACTIVATION_FRACTION = 0.5
GPU_BYTES = 80 * GB
"""An "80 GB" card, decimal, nothing reserved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedMemory:
    """Bytes on one GPU, as the lesson's calculator counts them."""

    weight_bytes: float
    optimizer_bytes: float
    gradient_bytes: float
    activation_bytes: float

    @property
    def state_bytes(self) -> float:
        """Weights, optimizer and gradients."""
        return self.weight_bytes + self.optimizer_bytes + self.gradient_bytes

    @property
    def total_bytes(self) -> float:
        """States and activations."""
        return self.state_bytes + self.activation_bytes

    @property
    def fits(self) -> bool:
        """Whether the total is at most 80 decimal gigabytes."""
        return self.total_bytes <= GPU_BYTES


def weight_bytes(*, num_params: float, precision_bytes: int = HALF_BYTES) -> float:
    """Bytes of the weights.

    Source: scaling lesson, table "Why distribution is required".
    Assumes: one copy, in the compute precision.

    >>> weight_bytes(num_params=70e9) / 1e9
    140.0
    """
    return num_params * precision_bytes


def gradient_bytes(*, num_params: float, precision_bytes: int = HALF_BYTES) -> float:
    """Bytes of the gradients.

    Source: scaling lesson, table "Why distribution is required".
    Assumes: gradients in the compute precision, one per parameter.

    >>> gradient_bytes(num_params=405e9) / 1e9
    810.0
    """
    return num_params * precision_bytes


def optimizer_bytes(*, num_params: float, optimizer: SeedOptimizer = "adam") -> float:
    """Bytes of the optimizer: 8 per parameter for Adam, 4 for SGD, 0 otherwise.

    Source: scaling lesson, step 4 "Memory calculator".
    Assumes: fp32 moments and no fp32 master copy; the 4 bytes of SGD are its momentum.

    >>> optimizer_bytes(num_params=70e9) / 1e9
    560.0
    """
    per_param = {"adam": ADAM_BYTES_PER_PARAM, "sgd": SGD_BYTES_PER_PARAM, "none": 0}[optimizer]
    return num_params * per_param


def activation_bytes_per_layer(
    *, seq_len: int, micro_batch_size: int, hidden_size: int, precision_bytes: int = HALF_BYTES
) -> int:
    """Activations one layer keeps: four tensors of ``(micro_batch_size, seq_len, hidden_size)``.

    Source: scaling lesson, step 4 "Memory calculator".
    Assumes: four saved tensors; a flash-attention block really keeps 17 of that width (arXiv:2205.05198).

    >>> activation_bytes_per_layer(seq_len=2048, micro_batch_size=1, hidden_size=4096)
    67108864
    """
    return seq_len * micro_batch_size * hidden_size * precision_bytes * TENSORS_PER_LAYER


def checkpointed_activation_bytes(*, activation_bytes: float) -> float:
    """Activations of layers that keep only their input: one of the four tensors that each is counted with.

    Source: scaling lesson, exercise 1, with K = 1; the FSDP page: "store only at unit boundaries".
    Assumes: the layer that is being recomputed is not counted, as the lesson counts no transient tensors at all.

    >>> checkpointed_activation_bytes(activation_bytes=32 * 67108864) / 2**30
    0.5
    """
    return activation_bytes / TENSORS_PER_LAYER


def fallback_activation_bytes(*, num_params: float, precision_bytes: int = HALF_BYTES) -> float:
    """Activations when the model's shape is not given: half of the weights.

    Source: scaling lesson, step 4 "Memory calculator".
    Assumes: nothing that can be checked; the figure is never divided by the number of GPUs.

    >>> fallback_activation_bytes(num_params=70e9) / 1e9
    70.0
    """
    return num_params * precision_bytes * FALLBACK_ACTIVATION_FRACTION


def per_gpu_memory(
    *,
    num_params: float,
    num_gpus: int = 1,
    zero_stage: Literal[0, 1, 2, 3] = 0,
    activation_bytes: float | None = None,
    precision_bytes: int = HALF_BYTES,
    optimizer: SeedOptimizer = "adam",
) -> SeedMemory:
    """Memory of one GPU as the lesson's calculator prints it.

    Args:
        num_params: parameters of the whole model.
        num_gpus: GPUs the states are divided over.
        zero_stage: 0 divides nothing, 1 the optimizer, 2 also the gradients, 3 (FSDP) also the weights.
        activation_bytes: activations of one GPU; ``None`` takes half of the undivided weights.
        precision_bytes: bytes of a weight and of a gradient.
        optimizer: which optimizer's states to count.

    Source: scaling lesson, step 4 "Memory calculator".
    Assumes: division without remainder or padding; fallback activations are not divided.

    >>> round(per_gpu_memory(num_params=70e9, num_gpus=8, zero_stage=3, activation_bytes=0).total_bytes / 1e9, 1)
    105.0
    """
    weights = weight_bytes(num_params=num_params, precision_bytes=precision_bytes)
    activations = (
        fallback_activation_bytes(num_params=num_params, precision_bytes=precision_bytes)
        if activation_bytes is None
        else activation_bytes
    )
    return SeedMemory(
        weight_bytes=weights / (num_gpus if zero_stage >= 3 else 1),
        gradient_bytes=gradient_bytes(num_params=num_params, precision_bytes=precision_bytes)
        / (num_gpus if zero_stage >= 2 else 1),
        optimizer_bytes=optimizer_bytes(num_params=num_params, optimizer=optimizer)
        / (num_gpus if zero_stage >= 1 else 1),
        activation_bytes=activations,
    )

"""What dropout draws in a step follows from the seed, the rank's place and the step, and from nothing that ran before.

The generators are seeded anew as every step begins. So no checkpoint has to hold them, and equal runs draw the same
however their processes were started. Micro-batches of a step go on drawing where the one before ended.

Tensor-parallel ranks hold the same activations between divided matrices and have to drop the same of them, so they
share a seed. What they hold in parts is dropped by a mask that all of them draw whole (``lora.py``). Pipeline stages
draw differently, and so do ranks that compute other tokens.
"""

import hashlib

import torch

from shardwise.train.mesh import Mesh

__all__ = ["begin_draws", "seed_of_step"]

SEED_BYTES = 8


def seed_of_step(*, seed: int, stage: int, copy: int, step: int) -> int:
    """The seed of one step.

    A hash, because generators that are seeded with neighbouring numbers or with sums of these would repeat each other.

    Args:
        seed: of the run.
        stage: place along the pipeline.
        copy: place among the ranks that run the same part of the model on other tokens.
        step: finished steps.

    >>> seed_of_step(seed=0, stage=0, copy=0, step=0) == seed_of_step(seed=0, stage=0, copy=1, step=0)
    False
    """
    words = f"{seed} {stage} {copy} {step}".encode()
    return int.from_bytes(hashlib.blake2b(words, digest_size=SEED_BYTES).digest(), "big")


def begin_draws(mesh: Mesh, *, device: torch.device, seed: int, step: int) -> None:
    """Seed the generators that this rank's forward passes draw from."""
    number = seed_of_step(seed=seed, stage=mesh.rank("pp"), copy=int(mesh.copies.get_local_rank()), step=step)
    torch.default_generator.manual_seed(number)
    if device.type == "cuda":
        torch.cuda.manual_seed(number)

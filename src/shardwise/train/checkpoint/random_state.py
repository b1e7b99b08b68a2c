"""The state of every generator a rank draws from, as one tensor of bytes."""

import io
import random

import torch

__all__ = ["pack_random_state", "unpack_random_state"]


def pack_random_state() -> torch.Tensor:
    """States of torch's generators (CPU and current device) and Python's, as bytes in a tensor."""
    states = {"torch": torch.get_rng_state(), "python": random.getstate()}
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    buffer = io.BytesIO()
    torch.save(states, buffer)
    return torch.frombuffer(bytearray(buffer.getvalue()), dtype=torch.uint8)


def unpack_random_state(packed: torch.Tensor) -> None:
    """Set the generators to what :func:`pack_random_state` found."""
    states = torch.load(io.BytesIO(packed.cpu().numpy().tobytes()), weights_only=True)
    torch.set_rng_state(states["torch"])
    version, internal, gauss = states["python"]
    random.setstate((version, tuple(internal), gauss))
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])

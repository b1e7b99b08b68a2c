"""An fp32 tensor as two of 16 bits: its rounding to bf16, and what the rounding took off."""

import torch
from torch import Tensor

LARGEST_REST = 2**15 - 1
"""A tie that was rounded down leaves 2^15, which 16 bits do not hold; the weight then loses one unit of its last
place."""


def halved(whole: Tensor) -> tuple[Tensor, Tensor]:
    """An fp32 tensor as its bf16 rounding and an int16 rest, both of the same shape."""
    half = whole.to(torch.bfloat16)
    rest = whole.view(torch.int32) - (half.view(torch.int16).to(torch.int32) << 16)
    return half, rest.clamp(max=LARGEST_REST).to(torch.int16)


def joined(half: Tensor, rest: Tensor) -> Tensor:
    """The fp32 tensor of two halves.

    >>> joined(*halved(torch.tensor([0.1, -3.0e38, 7.0]))).tolist() == torch.tensor([0.1, -3.0e38, 7.0]).tolist()
    True
    """
    return ((half.view(torch.int16).to(torch.int32) << 16) + rest.to(torch.int32)).view(torch.float32)

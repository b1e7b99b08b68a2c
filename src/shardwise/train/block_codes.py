"""Numbers as one byte each, with one fp32 scale for every 256: what 8-bit optimizers keep their moments in.

Source: Dettmers et al. 2021, arXiv:2110.02861, section 2 (dynamic tree quantisation, block-wise scales).
"""

from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import torch
import torch.nn.functional as F  # noqa: N812  (the field's name for it)
from torch import Tensor

BLOCK = 256
"""Numbers that share a scale; what the plan counts (``step/states.py``)."""
DECADES = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class Coded:
    """Numbers as bytes."""

    codes: Tensor
    """uint8, in the shape of the numbers."""
    scales: Tensor
    """fp32, the largest magnitude of every block of the flattened numbers."""


def dynamic_values(*, is_signed: bool) -> tuple[float, ...]:
    """The 256 values of a byte, ascending: seven decades below one, each finer than the one below it.

    Decade ``10^-k`` is cut into twice as many equal steps as the one below it; a value is a step's middle. Signed
    values use one bit for the sign, and their lowest is -1, so that a block's largest number is always kept as it is.

    >>> len(dynamic_values(is_signed=True)), len(dynamic_values(is_signed=False))
    (256, 256)
    """
    found = [0.0, 1.0]
    for decade in range(DECADES):
        steps = 2 ** (decade if is_signed else decade + 1)
        borders = [0.1 + 0.9 * index / steps for index in range(steps + 1)]
        middles = [(low + high) / 2 for low, high in pairwise(borders)]
        scaled = [10.0 ** (decade - DECADES + 1) * middle for middle in middles]
        found += scaled + ([-value for value in scaled] if is_signed else [])
    ascending = sorted(found)
    return tuple([-1.0, *ascending[1:]] if is_signed else ascending)


SIGNED, UNSIGNED = dynamic_values(is_signed=True), dynamic_values(is_signed=False)


def encode(numbers: Tensor, *, values: tuple[float, ...]) -> Coded:
    """Every number as the nearest of ``values`` times its block's scale.

    Of unsigned values, which divide an update, one above zero never becomes zero.
    """
    flat = numbers.detach().float().flatten()
    blocks = _in_blocks(flat)
    scales = blocks.abs().amax(dim=1)
    relative = blocks / scales.clamp(min=torch.finfo(torch.float32).tiny).unsqueeze(1)
    codes = torch.bucketize(relative, _borders(values, numbers.device), out_int32=True)
    if values[0] == 0:
        codes = codes.maximum((blocks > 0).int())
    return Coded(codes=codes.to(torch.uint8).flatten()[: flat.numel()].view(numbers.shape), scales=scales)


def decode(coded: Coded, *, values: tuple[float, ...]) -> Tensor:
    """The numbers that bytes stand for, in fp32; encoding them again gives the same bytes."""
    table = _table(values, coded.codes.device)
    flat = F.embedding(coded.codes.flatten().int(), table.unsqueeze(1)).squeeze(1)
    return (_in_blocks(flat) * coded.scales.unsqueeze(1)).flatten()[: flat.numel()].view(coded.codes.shape)


@cache
def _table(values: tuple[float, ...], device: torch.device) -> Tensor:
    """The values on a device, made once: a copy from the host waits for what the device was given before."""
    return torch.tensor(values, device=device)


@cache
def _borders(values: tuple[float, ...], device: torch.device) -> Tensor:
    """The borders half way between each value and the next."""
    table = _table(values, device)
    return (table[1:] + table[:-1]) / 2


def _in_blocks(flat: Tensor) -> Tensor:
    num_blocks = -(-flat.numel() // BLOCK)
    return F.pad(flat, (0, num_blocks * BLOCK - flat.numel())).view(num_blocks, BLOCK)

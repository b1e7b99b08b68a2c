"""Rotary position embedding in real numbers, so that a compiler fuses it with its neighbours.

Shapes: B sequences, S tokens, N heads, H head size.
"""

import math

import torch
from torch import Tensor

from shardwise.train.decoder.config import RopeConfig


def rotary_table(rope: RopeConfig, *, head_dim: int, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and sines ``(..., head_dim / 2)`` in fp32 of positions of any shape.

    Source: Su et al. 2021, arXiv:2104.09864; Llama 3.1's stretching of long wavelengths as its ``config.json`` states
    it (``rope_type`` llama3).
    """
    angles = positions.float().unsqueeze(-1) * _frequencies(rope, head_dim, positions.device)
    return angles.cos(), angles.sin()


def rotate(x_BSNH: Tensor, table: tuple[Tensor, Tensor]) -> Tensor:
    """Turn each pair of channels ``(i, i + H/2)`` by its position's angle; computed in fp32, returned as it came."""
    cos_S1H, sin_S1H = table[0].unsqueeze(-2), table[1].unsqueeze(-2)
    first, second = x_BSNH.float().chunk(2, dim=-1)
    turned = torch.cat((first * cos_S1H - second * sin_S1H, second * cos_S1H + first * sin_S1H), dim=-1)
    return turned.type_as(x_BSNH)


def _frequencies(rope: RopeConfig, head_dim: int, device: torch.device) -> Tensor:
    exponents = torch.arange(0, head_dim, 2, device=device, dtype=torch.float32) / head_dim
    frequencies = 1.0 / rope.theta_ratio**exponents
    if rope.kind == "linear":
        return frequencies / rope.factor_ratio
    if rope.kind != "llama3":
        return frequencies
    wavelengths = 2 * math.pi / frequencies
    turns = rope.original_seq_len / wavelengths
    smooth = (turns - rope.low_frequency_ratio) / (rope.high_frequency_ratio - rope.low_frequency_ratio)
    smooth = smooth.clamp(0, 1)
    return (1 - smooth) * frequencies / rope.factor_ratio + smooth * frequencies

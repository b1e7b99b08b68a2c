"""fp32 weights in two halves of 16 bits: bf16, which the model computes with, and what rounding to bf16 took off.

One rank that holds all weights has nobody to gather them from. Kept as fp32 they would be cast in every step, and their
gradients cast as well: 12 of the 44 bytes per parameter that a step with AdamW moves. The halves take the room of the
fp32 weight, and the bf16 gradient half the room of an fp32 one.

Source: Kalamkar et al. 2020, arXiv:2005.04680, section on Split-SGD-BF16 (there the halves are cut, not rounded).
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain

import torch
from torch import Tensor, nn

from shardwise.train.adamw import PIECE_ELEMENTS, SMALL_ELEMENTS
from shardwise.train.halved import halved, joined
from shardwise.train.units import Unit


@dataclass(slots=True, kw_only=True)
class Halves:
    """The parts of weights that rounding to bf16 took off; empty where parameters are computed with as they are kept.

    Small parameters have an fp32 copy instead of a rest: an update takes many of them at once.
    """

    rests: dict[nn.Parameter, Tensor] = field(default_factory=dict)
    copies: dict[nn.Parameter, nn.Parameter] = field(default_factory=dict)

    def whole(self, parameter: nn.Parameter) -> Tensor:
        """The parameter as it is kept: fp32, on the host where it has to be put together."""
        if parameter in self.copies:
            return self.copies[parameter].detach()
        rest = self.rests.get(parameter)
        if rest is None:
            return parameter.detach()
        whole = torch.empty(parameter.shape, dtype=torch.float32, device="cpu")
        for part, half, left in _pieces(whole, parameter.detach(), rest):
            part.copy_(joined(half, left))
        return whole

    def take(self, parameter: nn.Parameter, whole: Tensor) -> None:
        """Give the parameter another value."""
        with torch.no_grad():
            rest = self.rests.get(parameter)
            if rest is not None:
                for part, half, left in _pieces(whole, parameter.detach(), rest):
                    found = halved(part.to(device=half.device, dtype=torch.float32))
                    half.copy_(found[0])
                    left.copy_(found[1])
                return
            if parameter in self.copies:
                self.copies[parameter].copy_(whole)
            parameter.copy_(whole)

    def filled(self, named: Iterable[tuple[str, nn.Parameter]]) -> Iterator[tuple[str, Tensor]]:
        """Each tensor to be filled in place, in the dtype that is kept; taken over when the next one is asked for."""
        for name, parameter in named:
            if parameter in self.rests or parameter in self.copies:
                whole = torch.empty_like(parameter, dtype=torch.float32)
                yield name, whole
                self.take(parameter, whole)
            else:
                yield name, parameter

    def tensors(self) -> list[Tensor]:
        """Rests, as many bytes as the parameters they belong to, and fp32 copies of small ones, twice as many."""
        return [*self.rests.values(), *(copy.detach() for copy in self.copies.values())]


def _pieces(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Parts of contiguous tensors of one shape, few enough elements at a time for a device that is nearly full."""
    return zip(*(tensor.reshape(-1).split(PIECE_ELEMENTS) for tensor in tensors), strict=True)


def halve_units(units: Iterable[Unit], root: nn.Module, *, adds_up: bool) -> Halves:
    """Halve the fp32 parameters of every unit as soon as it is filled, then those of the rest of the model.

    Args:
        units: filled by the caller's iterator just before.
        root: the model.
        adds_up: whether gradients of several micro-batches are added up, which they are in fp32.
    """
    halves = Halves()
    for module in chain((unit.module for unit in units), [root]):
        for parameter in module.parameters():
            if parameter.dtype == torch.float32:
                _halve(parameter, halves, adds_up=adds_up)
    return halves


def _halve(parameter: nn.Parameter, halves: Halves, *, adds_up: bool) -> None:
    whole = parameter.detach()
    half, rest = halved(whole)
    parameter.data = half
    if adds_up and parameter.requires_grad:
        parameter.grad_dtype = torch.float32
        if parameter.ndim < 2:
            parameter.register_hook(_rounded)
    if parameter.numel() > SMALL_ELEMENTS:
        halves.rests[parameter] = rest
    else:
        halves.copies[parameter] = nn.Parameter(whole, requires_grad=parameter.requires_grad)


def _rounded(gradient: Tensor) -> Tensor:
    """A micro-batch's gradient as other layouts add it up: backward makes that of a norm in fp32."""
    return gradient.bfloat16().float()

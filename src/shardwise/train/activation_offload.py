"""What blocks save for backward waits in host memory.

Copies run on the stream that computes, from and to page-locked memory: they are ordered with the work around them and
the host never waits. Weights stay where they are: FSDP2 frees and gathers them by itself.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from shardwise.train.parameters import local_part

SMALLEST_BYTES = 1024 * 1024
"""Smaller tensors cost more in calls than they free; on CPUs, where only the path is tried, all of them travel."""


def offload_activations(blocks: list[nn.Module]) -> None:
    """Keep what the blocks save on the host from forward to backward."""
    for block in blocks:
        block.forward = _offloading(block, block.forward)


def _offloading(block: nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
    def run(*arguments: Any, **named: Any) -> Any:
        weights = {local_part(parameter).untyped_storage().data_ptr() for parameter in block.parameters()}

        def pack(tensor: Tensor) -> Any:
            is_weight = tensor.untyped_storage().data_ptr() in weights
            is_small = tensor.is_cuda and tensor.numel() * tensor.element_size() < SMALLEST_BYTES
            return tensor if is_weight or is_small else (tensor.device, _to_host(tensor))

        with saved_tensors_hooks(pack, _unpack):
            return forward(*arguments, **named)

    return run


def _to_host(tensor: Tensor) -> Tensor:
    """A copy with the tensor's strides where these leave no gaps, as compiled code relies on them."""
    kept = torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda)
    return kept.copy_(tensor, non_blocking=True)


def _unpack(kept: Any) -> Tensor:
    """A tensor that stayed, or its device and its copy on the host."""
    if isinstance(kept, Tensor):
        return kept
    device, tensor = kept
    return tensor.to(device, non_blocking=True)

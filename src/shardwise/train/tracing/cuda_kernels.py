"""The kernels torch would choose on a GPU, where there is none.

Fake tensors live on the CPU device here: torch without CUDA cannot run a backward pass of fake CUDA tensors. The few
places where the device decides what is computed are answered as a GPU would answer them, so that the same tensors are
saved for backward and the same temporaries made.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  (the field's name for it)
from torch import Tensor
from torch.overrides import TorchFunctionMode

from shardwise.train.torch_private import cudnn_attention, efficient_attention, math_attention, storage_key

HALF = (torch.bfloat16, torch.float16)


class CudaKernels(TorchFunctionMode):
    """While it is entered, functions choose as they do for tensors on an NVIDIA GPU."""

    def __init__(self, host_storages: "HostStorages") -> None:
        super().__init__()
        self.answers: dict[Any, Callable[..., Any]] = {
            F.scaled_dot_product_attention: _attention,
            F.rms_norm: _rms_norm,
            torch.Tensor.is_cuda.__get__: lambda tensor: tensor not in host_storages,
            torch.empty: host_storages.empty,
            torch.Tensor.to: host_storages.moved,
        }

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Answer as a GPU would, or call the function."""
        return self.answers.get(func, func)(*args, **(kwargs or {}))


class HostKernels(TorchFunctionMode):
    """While it is entered, functions choose as they do on CPUs: fake tensors on the CPU do that by themselves."""

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Call the function."""
        return func(*args, **(kwargs or {}))


class HostStorages:
    """Tensors that stand for page-locked host memory."""

    def __init__(self, addresses: set[int]) -> None:
        self.addresses = addresses

    def __contains__(self, tensor: Tensor) -> bool:
        return storage_key(tensor) in self.addresses

    def empty(self, *size: Any, pin_memory: bool = False, **options: Any) -> Tensor:
        """``torch.empty``; page-locked memory is the host's."""
        made = torch.empty(*size, **options)
        if pin_memory:
            self.addresses.add(storage_key(made))
        return made

    def moved(self, tensor: Tensor, *args: Any, **options: Any) -> Tensor:
        """``Tensor.to``; from the host to the device is a copy."""
        moved = tensor.to(*args, **options)
        return moved.clone() if tensor in self and moved is tensor else moved


def _attention(query: Tensor, key: Tensor, value: Tensor, *masks: Any, **options: Any) -> Tensor:
    """cuDNN's kernel in 16 bits; in fp32 the memory-efficient one where heads are not grouped, else plain products.

    Source: torch ``aten/src/ATen/native/transformers/attention.cpp`` and ``cuda/sdp_utils.cpp``.
    """
    is_causal, scale = bool(options.get("is_causal")), options.get("scale")
    has_mask = bool(masks) or options.get("attn_mask") is not None
    if query.dtype in HALF and not has_mask:
        return cudnn_attention(query, key, value, None, True, 0.0, is_causal, False, scale=scale)[0]
    if query.size(1) == key.size(1) and not has_mask:
        return efficient_attention(query, key, value, None, True, 0.0, is_causal, scale=scale)[0]
    mask = masks[0] if masks else options.get("attn_mask")
    return math_attention(
        query, key, value, mask, 0.0, is_causal, None, scale=scale, enable_gqa=bool(options.get("enable_gqa"))
    )[0]


def _rms_norm(x: Tensor, _shape: Any, weight: Tensor | None = None, **_options: Any) -> Tensor:
    """One kernel that saves its input and one number per row; CPUs, fake ones too, would run nine."""
    return _FusedRmsNorm.apply(x, weight)


class _FusedRmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None) -> Tensor:
        statistics = torch.empty((*x.shape[:-1], 1), dtype=torch.float32, device=x.device)
        ctx.save_for_backward(x, weight, statistics)
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, _gradient: Tensor) -> tuple[Tensor, Tensor | None]:
        x, weight, _ = ctx.saved_tensors
        return torch.empty_like(x), None if weight is None else torch.empty_like(weight)

"""Products of blocks in fp8: every matrix is scaled by its own largest number, anew in every product.

Forward multiplies e4m3 with e4m3, backward e5m2 gradients with e4m3; weights stay fp32 shards, cast to bf16 when they
are gathered and to 8 bits in the product. The head, routers, stacked experts and adapters compute in bf16.

On a GPU from compute capability 8.9 the products are ``torch._scaled_mm``'s. On CPUs they are emulated: rounded to 8
bits and multiplied in fp32, which gives the numbers but none of the speed.

Source: Micikevicius et al. 2022, arXiv:2209.05433 (formats, and which is used where).
Shapes: T tokens, I features in, O features out.
"""

from typing import Any

import torch
from torch import Tensor, nn

from shardwise.errors import RecipeError
from shardwise.train.decoder.blocks import Linear
from shardwise.train.decoder.groups import local, part_of_bias
from shardwise.train.torch_private import scaled_mm

WEIGHTS, GRADIENTS = torch.float8_e4m3fn, torch.float8_e5m2
SMALLEST = 1e-12
"""The largest number of a matrix of zeros, so that nothing is divided by zero."""
MULTIPLE = 16
"""cuBLAS multiplies 8-bit matrices whose sizes are multiples of 16."""
FIRST_CAPABILITY = (8, 9)
"""Ada; Hopper and Blackwell follow."""


class Fp8Linear(Linear):
    """A linear layer whose three products are in fp8."""

    def __init__(self, dense: Linear | nn.Linear) -> None:
        nn.Module.__init__(self)
        self.weight, self.bias, self.bias_fraction = dense.weight, dense.bias, 1.0

    def forward(self, x: Tensor) -> Tensor:
        """``(..., in)`` to ``(..., out)``."""
        out: Tensor = _Fp8Product.apply(x.flatten(0, -2), local(self.weight))
        out = out.unflatten(0, x.shape[:-1])
        bias = part_of_bias(self.bias, self.bias_fraction)
        return out if bias is None else out + bias


def use_fp8(blocks: list[nn.Module], *, num_tokens: int, device: torch.device) -> None:
    """Compute every linear layer of the blocks in fp8.

    Args:
        blocks: before they are divided; their linear layers are replaced.
        num_tokens: of one micro-batch on one rank.
        device: where they will run.

    Raises:
        RecipeError: the GPU has no fp8 products, or a matrix has a size they cannot have.
    """
    if device.type == "cuda" and torch.cuda.get_device_capability(device) < FIRST_CAPABILITY:
        raise RecipeError(
            f"{torch.cuda.get_device_name(device)} has no fp8 products",
            code="train-fp8",
            fix="set precision to bf16-mixed",
        )
    for parent in [module for block in blocks for module in block.modules()]:
        for name, child in list(parent.named_children()):
            if type(child) in (Linear, nn.Linear):  # a subclass (a router) computes something of its own
                _require_multiple(name, (num_tokens, *child.weight.shape))
                setattr(parent, name, Fp8Linear(child))


def _require_multiple(name: str, sizes: tuple[int, ...]) -> None:
    if any(size % MULTIPLE for size in sizes):
        raise RecipeError(
            f"fp8 products need sizes that are multiples of {MULTIPLE}, and {name} multiplies {sizes[0]} tokens with "
            f"{sizes[1]} x {sizes[2]} weights",
            code="train-fp8",
            fix=f"set seq_len times micro_batch_size to a multiple of {MULTIPLE}, or precision to bf16-mixed",
        )


class _Fp8Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_TI: Tensor, weight_OI: Tensor) -> Tensor:
        ctx.save_for_backward(x_TI, weight_OI)
        return scaled_product(x_TI, weight_OI.t(), left=WEIGHTS, is_fast=True)

    @staticmethod
    def backward(ctx: Any, gradient_TO: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x_TI, weight_OI = ctx.saved_tensors
        needs_x, needs_weight = ctx.needs_input_grad
        x_gradient = scaled_product(gradient_TO, weight_OI, left=GRADIENTS) if needs_x else None
        weight_gradient = scaled_product(gradient_TO.t(), x_TI, left=GRADIENTS) if needs_weight else None
        return x_gradient, weight_gradient


def scaled_product(a: Tensor, b: Tensor, *, left: torch.dtype, is_fast: bool = False) -> Tensor:
    """``a b`` with ``a`` rounded to the format ``left`` and ``b`` to e4m3, in the dtype of ``a``.

    ``is_fast`` lets the GPU add up in fewer bits, which is good enough forward and not backward.
    """
    rounded_a, scale_a = rounded(a, left)
    rounded_b, scale_b = rounded(b, WEIGHTS)
    if a.device.type != "cuda":
        product = (rounded_a.float() * scale_a) @ (rounded_b.float() * scale_b)
        return product.to(a.dtype)
    # The hardware reads rows of the left matrix and columns of the right one.
    columns_b = rounded_b.t().contiguous().t()
    return scaled_mm(rounded_a.contiguous(), columns_b, scale_a, scale_b, out_dtype=a.dtype, use_fast_accum=is_fast)


def rounded(matrix: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """A matrix in 8 bits, and the fp32 factor that gives its numbers back."""
    largest = torch.finfo(dtype).max
    # Row by row first: over all elements at once the compiler's kernel reads at 1.3 TB/s on an H200.
    scale = matrix.abs().amax(dim=-1).amax().float().clamp(min=SMALLEST) / largest
    return (matrix.float() / scale).clamp(-largest, largest).to(dtype), scale

"""4-bit base weights: matrices stored as NF4 with 8-bit scales, made whole only for the product that needs them.

Plain torch, so that it runs where bitsandbytes does not, and shards as any parameter does: a row of a matrix is packed
by itself into a row of bytes,

    codes (in / 2)  |  scales of 64 weights each (in / 64)  |  scale of the row's scales (4)

so a rank that holds some rows of the packed matrix holds those rows, whatever divides them. Where tensor parallelism
divides the inputs of a matrix, a rank packs its part of every row, with the scale of the whole one. The bytes are
stored in the dtype the model computes with, because FSDP2 casts every other dtype to that one before it gathers.

Source: Dettmers et al. 2023, arXiv:2305.14314, section 3 (NF4, double quantisation). Two differences: scales of a row
share one fp32 scale (the paper: 256 of them, after their mean is taken away), and are rounded up, so that no weight
lies outside its block's range.
"""

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  (the field's name for it)
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed.tensor import DTensor, Shard

from shardwise.train.decoder.groups import local, part_of_bias
from shardwise.train.exchange import all_reduced

NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453,
    -0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0,
    0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip
"""Quantiles of a normal distribution, scaled to [-1, 1]. Source: arXiv:2305.14314, appendix E."""
BLOCK = 64
"""Weights that share a scale."""
ALIGNMENT_BYTES = 4
SCALE_STEPS = 255


def packed_bytes(in_features: int) -> int:
    """Bytes of one packed row.

    >>> packed_bytes(4096) / 4096
    0.5166015625
    """
    blocks = -(-in_features // BLOCK)
    used = blocks * (BLOCK // 2 + 1)
    return -(-used // ALIGNMENT_BYTES) * ALIGNMENT_BYTES + ALIGNMENT_BYTES


def pack(weight: Tensor, group: ProcessGroup | None = None) -> Tensor:
    """Rows of a matrix ``(rows, in)`` as bytes ``(rows, packed_bytes(in))``.

    Where ranks hold parts of the same rows, whole blocks each, the codes are those of the whole rows.

    Args:
        weight: the rows.
        group: the ranks that hold the other parts of these rows.
    """
    rows, in_features = weight.shape
    blocks = -(-in_features // BLOCK)
    padded = F.pad(weight.float(), (0, blocks * BLOCK - in_features)).view(rows, blocks, BLOCK)
    largest = padded.abs().amax(dim=2)
    row_scale = all_reduced(largest.amax(dim=1, keepdim=True), "max", group).clamp(min=torch.finfo(torch.float32).tiny)
    steps = (largest / row_scale * SCALE_STEPS).ceil().clamp(1, SCALE_STEPS)
    scale = steps * row_scale / SCALE_STEPS
    codes = _nearest(padded / scale.unsqueeze(2)).view(rows, -1)
    pairs = codes[:, 0::2] * 16 + codes[:, 1::2]
    used = pairs.size(1) + blocks
    gap = packed_bytes(in_features) - ALIGNMENT_BYTES - used
    padding = torch.zeros(rows, gap, dtype=torch.uint8, device=weight.device)
    return torch.cat([pairs, steps.to(torch.uint8), padding, row_scale.contiguous().view(torch.uint8)], dim=1)


def unpack(packed: Tensor, *, in_features: int, pairs: Tensor) -> Tensor:
    """The matrix ``(rows, in)`` that bytes stand for, in the dtype of ``pairs``."""
    rows, blocks = packed.size(0), -(-in_features // BLOCK)
    num_pairs = blocks * BLOCK // 2
    values = F.embedding(packed[:, :num_pairs].int(), pairs).view(rows, blocks, BLOCK)
    row_scale = packed[:, -ALIGNMENT_BYTES:].contiguous().view(torch.float32) / SCALE_STEPS
    scale = (packed[:, num_pairs : num_pairs + blocks].float() * row_scale).to(pairs.dtype)
    return (values * scale.unsqueeze(2)).view(rows, -1)[:, :in_features]


def pair_table(dtype: torch.dtype, device: torch.device) -> Tensor:
    """The two values of every byte: ``(256, 2)``."""
    values = torch.tensor(NF4, dtype=dtype, device=device)
    codes = torch.arange(256, device=device)
    return torch.stack((values[codes // 16], values[codes % 16]), dim=1)


class QuantisedLinear(nn.Module):
    """A frozen linear layer that keeps its matrix packed; :meth:`pack` turns the dense one it was filled with."""

    def __init__(self, dense: nn.Module) -> None:
        super().__init__()
        self.weight = dense.get_parameter("weight")
        bias = dict(dense.named_parameters()).get("bias")
        self.bias = bias
        self.out_features, self.in_features = self.weight.shape
        self.dtype = self.weight.dtype
        self.own_in_features = self.in_features
        """Inputs that this rank multiplies."""
        self.bias_fraction = 1.0
        """This rank's share of a bias that ranks add up with their outputs."""
        self.rows_group: ProcessGroup | None = None
        """The ranks that hold the other parts of the same rows."""
        self.register_buffer("pairs", None, persistent=False)

    def pack(self) -> None:
        """Quantise the weights this module was given."""
        dense = self.weight.detach()
        self.pairs = pair_table(self.dtype, dense.device)
        packed = pack(local(dense), self.rows_group).view(self.dtype)
        if isinstance(dense, DTensor):
            packed = _as_divided(packed, dense)
        self.weight = nn.Parameter(packed, requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """``(..., in)`` to ``(..., out)``."""
        out: Tensor = _QuantisedProduct.apply(x, local(self.weight), self.pairs, self.own_in_features)
        bias = part_of_bias(self.bias, self.bias_fraction)
        return out if bias is None else out + bias


def _as_divided(packed: Tensor, dense: DTensor) -> DTensor:
    """A rank's packed part as the part of a packed matrix that is divided as the dense one was."""
    rows, columns = packed.shape
    for size, placement in zip(dense.device_mesh.shape, dense.placements, strict=True):
        rows, columns = rows * (size if placement == Shard(0) else 1), columns * (size if placement == Shard(1) else 1)
    return DTensor.from_local(
        packed,
        dense.device_mesh,
        dense.placements,
        run_check=False,
        shape=torch.Size((rows, columns)),
        stride=(columns, 1),
    )


@torch.library.custom_op("shardwise::table_for_backward", mutates_args=())
def table_for_backward(pairs: Tensor, gradient: Tensor) -> Tensor:
    """A copy of the table that cannot be made before the gradient is there.

    An operator, so that a compiler cannot tell that the copy equals the table of forward: the compiler would find that
    forward and backward make the same matrix, and keep the matrix in between.
    """
    del gradient
    return pairs.clone()


@table_for_backward.register_fake
def _(pairs: Tensor, gradient: Tensor) -> Tensor:
    del gradient
    return torch.empty_like(pairs)


class _QuantisedProduct(torch.autograd.Function):
    """``x W^T``; backward dequantises W again instead of keeping it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, packed: Tensor, pairs: Tensor, in_features: int) -> Tensor:
        ctx.save_for_backward(packed, pairs)
        ctx.in_features = in_features
        return F.linear(x, unpack(packed.view(torch.uint8), in_features=in_features, pairs=pairs))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        packed, table = ctx.saved_tensors
        pairs = table_for_backward(table, gradient)
        weight = unpack(packed.view(torch.uint8), in_features=ctx.in_features, pairs=pairs)
        return gradient @ weight, None, None, None


def quantise_blocks(blocks: list[nn.Module], kinds: tuple[type[nn.Module], ...]) -> None:
    """Replace every linear layer of the given kinds in the blocks by one that will be packed."""
    for block in blocks:
        for parent in list(block.modules()):
            for name, child in list(parent.named_children()):
                if isinstance(child, kinds):
                    setattr(parent, name, QuantisedLinear(child))


def pack_matrices(module: nn.Module) -> None:
    """Pack what was filled with dense values."""
    for part in module.modules():
        if isinstance(part, QuantisedLinear):
            part.pack()


def _nearest(values: Tensor) -> Tensor:
    """The code of the nearest NF4 value, as uint8."""
    table = torch.tensor(NF4, device=values.device)
    borders = (table[1:] + table[:-1]) / 2
    return torch.bucketize(values, borders, out_int32=True).to(torch.uint8)

"""Collectives with gradients, built on torch's traceable collective operators so that compiled blocks contain them.

The operators in ``torch.ops._c10d_functional`` are the same in torch 2.11 and 2.13, unlike their Python wrappers.

Each function states what its backward does. Only contiguous tensors are handed to the backend: gloo silently misreads
others (pytorch/pytorch#192920).
"""

from typing import Any

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from shardwise.train.torch_private import collectives


def world_sum(values: Tensor) -> Tensor:
    """The sum over all ranks of the job, in place."""
    if torch.distributed.is_initialized() and torch.distributed.get_world_size() > 1:
        torch.distributed.all_reduce(values)
    return values


def gather_dim(x: Tensor, dim: int, group: ProcessGroup) -> Tensor:
    """Every rank's part side by side along ``dim``; backward sums the gradients and keeps this rank's part."""
    return _GatherDim.apply(x, dim, group)


def reduce_scatter_dim(x: Tensor, dim: int, group: ProcessGroup) -> Tensor:
    """This rank's part along ``dim`` of the sum over ranks; backward gathers the gradients."""
    return _ReduceScatterDim.apply(x, dim, group)


def all_reduce_forward(x: Tensor, group: ProcessGroup) -> Tensor:
    """The sum over ranks; backward passes the gradient on as it is."""
    return _AllReduceForward.apply(x, group)


def all_reduce_backward(x: Tensor, group: ProcessGroup) -> Tensor:
    """``x`` itself; backward sums the ranks' gradients."""
    return _AllReduceBackward.apply(x, group)


def exchange_rows(
    x: Tensor, sent_rows: list[int] | None, received_rows: list[int] | None, group: ProcessGroup
) -> Tensor:
    """Rows to every rank of the group and theirs in return (equal parts when no rows are given); backward returns."""
    if not x.is_floating_point():
        return _all_to_all(x, received_rows, sent_rows, group)
    return _ExchangeRows.apply(x, sent_rows, received_rows, group)


def all_reduced(x: Tensor, operation: str, group: ProcessGroup | None) -> Tensor:
    """The ``sum`` or ``max`` over ranks, without a gradient; ``x`` itself when there is no group."""
    if group is None:
        return x
    return _wait(collectives.all_reduce(x.contiguous(), operation, group.group_name))


def gathered(x: Tensor, group: ProcessGroup) -> Tensor:
    """Every rank's rows one below the other, without a gradient."""
    return _gather(x, 0, group)


def scattered_rows(x: Tensor, group: ProcessGroup) -> Tensor:
    """This rank's rows of the sum over ranks, without a gradient."""
    return _reduce_scatter(x, 0, group)


def exchanged_sum(x: Tensor, group: ProcessGroup) -> Tensor:
    """This rank's rows of the sum over ranks, added up in fp32, without a gradient.

    Every part travels once and as it is, so that bf16 costs half the bytes of a reduction in fp32 and rounds no sooner.
    """
    parts = _all_to_all(x, None, None, group).unflatten(0, (group.size(), -1))
    return parts.sum(dim=0, dtype=torch.float32)


def _wait(x: Tensor) -> Tensor:
    return collectives.wait_tensor(x)


def _all_to_all(x: Tensor, received: list[int] | None, sent: list[int] | None, group: ProcessGroup) -> Tensor:
    equal = [x.size(0) // group.size()] * group.size()
    return _wait(collectives.all_to_all_single(x.contiguous(), received or equal, sent or equal, group.group_name))


def _gather(x: Tensor, dim: int, group: ProcessGroup) -> Tensor:
    """The parts of all ranks side by side; one sequence needs no copy after the gather, several sequences one."""
    if x.size(0) == 1 and dim == 1:
        return _gather(x.squeeze(0), 0, group).unsqueeze(0)
    gathered = _wait(collectives.all_gather_into_tensor(x.contiguous(), group.size(), group.group_name))
    return gathered if dim == 0 else torch.cat(gathered.chunk(group.size(), dim=0), dim=dim)


def _reduce_scatter(x: Tensor, dim: int, group: ProcessGroup) -> Tensor:
    if x.size(0) == 1 and dim == 1:
        return _reduce_scatter(x.squeeze(0), 0, group).unsqueeze(0)
    ordered = x if dim == 0 else torch.cat(x.chunk(group.size(), dim=dim), dim=0)
    return _wait(collectives.reduce_scatter_tensor(ordered.contiguous(), "sum", group.size(), group.group_name))


class _GatherDim(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int, group: ProcessGroup) -> Tensor:
        ctx.dim, ctx.group = dim, group
        return _gather(x, dim, group)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return _reduce_scatter(gradient, ctx.dim, ctx.group), None, None


class _ReduceScatterDim(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int, group: ProcessGroup) -> Tensor:
        ctx.dim, ctx.group = dim, group
        return _reduce_scatter(x, dim, group)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return _gather(gradient, ctx.dim, ctx.group), None, None


class _AllReduceForward(torch.autograd.Function):
    @staticmethod
    def forward(_ctx: Any, x: Tensor, group: ProcessGroup) -> Tensor:
        return all_reduced(x, "sum", group)

    @staticmethod
    def backward(_ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


class _AllReduceBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: ProcessGroup) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return all_reduced(gradient, "sum", ctx.group), None


class _ExchangeRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, sent: list[int] | None, received: list[int] | None, group: ProcessGroup) -> Tensor:
        ctx.sent, ctx.received, ctx.group = sent, received, group
        return _all_to_all(x, received, sent, group)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        return _all_to_all(gradient, ctx.sent, ctx.received, ctx.group), None, None, None

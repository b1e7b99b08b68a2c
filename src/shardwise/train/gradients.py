"""Turns gradients of summed losses into a step: one sum over all ranks gives loss, tokens and norm together."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from shardwise.train.exchange import world_sum
from shardwise.train.parameters import Trained, local_part
from shardwise.train.torch_private import foreach_copy, foreach_mul, foreach_norm

NORM_EPSILON = 1e-6
"""The value of ``torch.nn.utils.clip_grad_norm_``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSums:
    """Sums of a step over all ranks; scalars on the device."""

    loss: Tensor
    """Loss per token."""
    num_tokens: Tensor
    """Tokens that had a label."""
    gradient_norm: Tensor
    """Norm of the gradient of the loss, before clipping."""
    gradient_factor: Tensor
    """Factor on the summed gradients: one over the tokens, and less where the norm is clipped."""
    num_stopping: Tensor
    """Ranks that were asked to stop."""


def sum_step(
    trained: tuple[Trained, ...],
    *,
    loss_sum: Tensor,
    num_tokens: Tensor,
    unit_ratio: float,
    max_grad_norm: float,
    is_stopping: bool = False,
) -> StepSums:
    """Loss, tokens and gradient norm over every axis of the mesh.

    Args:
        trained: parameters whose local parts hold gradients of the summed loss times ``unit_ratio``.
        loss_sum: this rank's share of the summed loss; ranks that hold the same tokens share it among them.
        num_tokens: this rank's share of the labelled tokens, likewise.
        unit_ratio: what the loss was multiplied with before backward, to keep gradients in range.
        max_grad_norm: the norm gradients are scaled down to; 0 never does.
        is_stopping: whether this rank was asked to stop; the sum tells all ranks in the same step.
    """
    stopping = loss_sum.new_full((), float(is_stopping), dtype=torch.float64)
    squared_norm = _squared_norm(trained).to(loss_sum.device)
    sums = torch.stack([loss_sum.double(), num_tokens.double(), squared_norm, stopping])
    world_sum(sums)
    loss, tokens, squared, num_stopping = sums.unbind()
    tokens = tokens.clamp(min=1)
    norm = squared.sqrt() / (unit_ratio * tokens)
    clip = (max_grad_norm / (norm + NORM_EPSILON)).clamp(max=1.0) if max_grad_norm > 0 else torch.ones_like(norm)
    return StepSums(
        loss=loss / tokens,
        num_tokens=tokens,
        gradient_norm=norm,
        gradient_factor=clip / (unit_ratio * tokens),
        num_stopping=num_stopping,
    )


def scale_gradients(trained: tuple[Trained, ...], factor: Tensor) -> None:
    """Multiply every local gradient."""
    gradients = [entry.local.grad for entry in trained if entry.local.grad is not None]
    if gradients:
        foreach_mul(gradients, factor.to(device=gradients[0].device, dtype=gradients[0].dtype))


def sum_part_gradients(parameters: Sequence[nn.Parameter], group: ProcessGroup) -> None:
    """Add up, in one call, the parts of gradients that the ranks of a group have."""
    gradients = [local_part(parameter.grad) for parameter in parameters if parameter.grad is not None]
    if not gradients:
        return
    together = torch.cat([gradient.flatten() for gradient in gradients])
    torch.distributed.all_reduce(together, group=group)
    foreach_copy(
        gradients,
        [
            part.view_as(gradient)
            for part, gradient in zip(together.split([g.numel() for g in gradients]), gradients, strict=True)
        ],
    )


def sum_tied_gradients(parameters: list[nn.Parameter], group: ProcessGroup | None) -> None:
    """Sum the gradients of a table that the first and the last stage both hold."""
    for parameter in parameters:
        if group is not None and parameter.grad is not None:
            torch.distributed.all_reduce(local_part(parameter.grad), group=group)


def _squared_norm(trained: tuple[Trained, ...]) -> Tensor:
    """This rank's share over all gradients: a part that several ranks hold is counted by each in equal shares."""
    by_copies: dict[int, list[Tensor]] = {}
    for entry in trained:
        if entry.local.grad is not None:
            by_copies.setdefault(entry.num_copies, []).append(entry.local.grad)
    shares = [
        torch.stack(foreach_norm(gradients, 2.0, dtype=torch.float32)).double().square().sum() / num_copies
        for num_copies, gradients in by_copies.items()
    ]
    return torch.stack(shares).sum() if shares else torch.zeros((), dtype=torch.float64)

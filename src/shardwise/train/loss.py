"""Cross-entropy over the vocabulary, computed piece by piece together with its gradients.

The gradients of a piece's logits are known as soon as its logits are, so the product with the head, the loss and both
products of its backward run piece by piece and the logits of the whole batch never exist. Gradients are written over
the logits. No product is done twice.

Shapes: T tokens, D hidden, V vocabulary (this rank's part).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from shardwise.step.loss import num_own_pieces, padded_rows
from shardwise.train.compiled import compiled
from shardwise.train.exchange import all_reduced
from shardwise.train.torch_private import foreach_mul

IGNORED_LABEL = -100
"""A position that counts neither in the loss nor in its divisor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossSettings:
    """How the loss is divided into pieces."""

    num_chunks: int | None = None
    """``None``: as few as keep a piece of logits small (:func:`~shardwise.step.loss.num_own_pieces`)."""
    is_compiled: bool = False
    is_plain: bool = False
    """Whole logits and torch's own backward. Schedules that split the backward pass ask for it: before torch 2.13 they
    cannot enter an autograd function of ours in the middle."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pieces:
    """How many pieces there are, what computes one, and who holds the other parts of the vocabulary."""

    num_chunks: int
    of: Callable[[Tensor, Tensor, ProcessGroup | None], Tensor]
    """The loss of logits and labels; what was the logits is their gradient then."""
    group: ProcessGroup | None


def summed_token_loss(
    hidden_TD: Tensor,
    weight_VD: Tensor,
    labels_T: Tensor,
    *,
    settings: LossSettings,
    group: ProcessGroup | None = None,
) -> Tensor:
    """The sum over labelled tokens of ``-log softmax(hidden weight^T)[label]``, in fp32.

    ``group`` holds the other parts of the vocabulary; every rank of it returns the same sum.
    """
    if torch.is_autocast_enabled(hidden_TD.device.type):
        dtype = torch.get_autocast_dtype(hidden_TD.device.type)
        hidden_TD, weight_VD = hidden_TD.to(dtype), weight_VD.to(dtype)
    if settings.is_plain and group is None:
        logits_TV = torch.nn.functional.linear(hidden_TD, weight_VD).float()
        return torch.nn.functional.cross_entropy(logits_TV, labels_T, reduction="sum", ignore_index=IGNORED_LABEL)
    chunks = settings.num_chunks or num_own_pieces(
        num_tokens=hidden_TD.size(0), vocab_rows=weight_VD.size(0), element_bytes=hidden_TD.element_size()
    )
    piece = _compiled_piece if settings.is_compiled else _piece
    return _SummedTokenLoss.apply(hidden_TD, weight_VD, labels_T, Pieces(num_chunks=chunks, of=piece, group=group))


def _piece(logits_TV: Tensor, labels_T: Tensor, group: ProcessGroup | None) -> Tensor:
    """Summed loss of one piece, and the gradient of its logits in their place; one fp32 copy of them at a time."""
    is_labelled = labels_T != IGNORED_LABEL
    index_T1, is_here = _targets(labels_T, logits_TV.size(1), group)
    largest_T1 = all_reduced(logits_TV.amax(dim=1, keepdim=True).float(), "max", group)
    shifted_TV = logits_TV.float().sub_(largest_T1)
    target_T1 = all_reduced(shifted_TV.gather(1, index_T1) * is_here, "sum", group)
    exponentials_TV = shifted_TV.exp_()
    sum_T1 = all_reduced(exponentials_TV.sum(dim=1, keepdim=True), "sum", group)
    loss = ((sum_T1.log() - target_T1) * is_labelled.unsqueeze(1)).sum()
    gradient_TV = exponentials_TV.div_(sum_T1).scatter_add_(1, index_T1, -is_here.float())
    logits_TV.copy_(gradient_TV.mul_(is_labelled.unsqueeze(1)))
    return loss


def _fused_piece(logits_TV: Tensor, labels_T: Tensor, _group: ProcessGroup | None) -> Tensor:
    """``_piece`` as expressions that a compiler makes kernels of, which store no fp32 copy."""
    is_labelled = (labels_T != IGNORED_LABEL).unsqueeze(1)
    index_T1, is_here = _targets(labels_T, logits_TV.size(1), None)
    shifted_TV = logits_TV.float() - logits_TV.amax(dim=1, keepdim=True).float()
    sum_T1 = shifted_TV.exp().sum(dim=1, keepdim=True)
    target_T1 = shifted_TV.gather(1, index_T1) * is_here
    loss = ((sum_T1.log() - target_T1) * is_labelled).sum()
    columns_V = torch.arange(logits_TV.size(1), device=logits_TV.device)
    is_target_TV = (columns_V.unsqueeze(0) == index_T1) & is_here
    logits_TV.copy_((shifted_TV.exp() / sum_T1 - is_target_TV.float()) * is_labelled)
    return loss


def _targets(labels_T: Tensor, rows: int, group: ProcessGroup | None) -> tuple[Tensor, Tensor]:
    """``(T, 1)``: the row of every label in this rank's part of the vocabulary, and whether it is there."""
    shifted = labels_T - (group.rank() * rows if group is not None else 0)
    is_here = (labels_T != IGNORED_LABEL) & (shifted >= 0) & (shifted < rows)
    return shifted.clamp(0, rows - 1).unsqueeze(1), is_here.unsqueeze(1)


def _compiled_piece(logits_TV: Tensor, labels_T: Tensor, group: ProcessGroup | None) -> Tensor:
    """``_piece``, compiled; over several ranks in two parts, before and after what they exchange."""
    if group is None and logits_TV.device.type == "cuda":  # not is_cuda, which a trace without a GPU answers with yes
        from shardwise.train.kernels import differentiate_cross_entropy  # noqa: PLC0415 - Triton comes with CUDA alone

        return differentiate_cross_entropy(logits_TV, labels_T, ignored_label=IGNORED_LABEL).sum()
    if group is None:
        return compiled(_fused_piece)(logits_TV, labels_T, None)
    index_T1, is_here_T1 = _targets(labels_T, logits_TV.size(1), group)
    index_T, is_here_T = index_T1.squeeze(1), is_here_T1.squeeze(1)
    sums_3T = _over_ranks(compiled(_sums)(logits_TV, index_T, is_here_T), group)
    return compiled(_finish)(logits_TV, sums_3T, torch.where(is_here_T, index_T, -1), labels_T != IGNORED_LABEL)


def _over_ranks(own_3T: Tensor, group: ProcessGroup) -> Tensor:
    """The results of :func:`_sums` for the whole vocabulary, from those of every rank's part."""
    largest_T, sum_T, label_T = own_3T.unbind()
    highest_T = all_reduced(largest_T, "max", group)
    sum_T = all_reduced(sum_T * (largest_T - highest_T).exp(), "sum", group)
    return torch.stack((highest_T, sum_T, all_reduced(label_T, "sum", group)))


def _sums(logits_TV: Tensor, index_T: Tensor, is_here_T: Tensor) -> Tensor:
    """Largest logit, sum of exponentials and label's logit of every token, over this rank's part of the vocabulary.

    The last is 0 where another rank holds the label.
    """
    largest_T1 = logits_TV.amax(dim=1, keepdim=True).float()
    sum_T = (logits_TV.float() - largest_T1).exp().sum(dim=1)
    label_T = logits_TV.gather(1, index_T.unsqueeze(1)).squeeze(1).float() * is_here_T
    return torch.stack((largest_T1.squeeze(1), sum_T, label_T))


def _finish(logits_TV: Tensor, sums_3T: Tensor, target_T: Tensor, is_labelled_T: Tensor) -> Tensor:
    """Loss, and the gradient in place, from the sums of all ranks; ``target_T`` is -1 for labels of other parts."""
    largest_T, sum_T, label_T = sums_3T.unbind()
    loss = ((sum_T.log() + largest_T - label_T) * is_labelled_T).sum()
    columns_V = torch.arange(logits_TV.size(1), device=logits_TV.device)
    is_target_TV = columns_V.unsqueeze(0) == target_T.unsqueeze(1)
    share_TV = (logits_TV.float() - largest_T.unsqueeze(1)).exp() / sum_T.unsqueeze(1)
    logits_TV.copy_((share_TV - is_target_TV.float()) * is_labelled_T.unsqueeze(1))
    return loss


def _padded(weight_VD: Tensor) -> Tensor:
    """The matrix with rows of zeros below it where its rows are no multiple of what products want."""
    missing = padded_rows(weight_VD.size(0)) - weight_VD.size(0)
    return torch.nn.functional.pad(weight_VD, (0, 0, 0, missing)) if missing else weight_VD


class _SummedTokenLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_TD: Tensor,
        weight_VD: Tensor,
        labels_T: Tensor,
        pieces: "Pieces",
    ) -> Tensor:
        needs_hidden, needs_weight = ctx.needs_input_grad[:2]
        hidden_gradient = torch.empty_like(hidden_TD) if needs_hidden else None
        num_rows = weight_VD.size(0)
        weight_VD = _padded(weight_VD)
        weight_gradient = torch.empty_like(weight_VD) if needs_weight else None
        total = torch.zeros((), dtype=torch.float32, device=hidden_TD.device)
        start = 0
        for part_TD, labels in zip(hidden_TD.chunk(pieces.num_chunks), labels_T.chunk(pieces.num_chunks), strict=True):
            logits_TV = part_TD @ weight_VD.t()
            total += pieces.of(logits_TV[:, :num_rows], labels, pieces.group)
            gradient_TV = logits_TV  # rows of zeros have logits of zero, which are their gradients too
            if hidden_gradient is not None:
                torch.mm(gradient_TV, weight_VD, out=hidden_gradient[start : start + part_TD.size(0)])
            if weight_gradient is not None:
                weight_gradient.addmm_(gradient_TV.t(), part_TD, beta=int(start > 0))
            start += part_TD.size(0)
            del logits_TV, gradient_TV  # before the next piece is made
        ctx.save_for_backward(hidden_gradient, None if weight_gradient is None else weight_gradient[:num_rows])
        ctx.is_scaled = False
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        hidden_gradient, weight_gradient = ctx.saved_tensors
        if not ctx.is_scaled:
            # In place and once: schedules that split the backward pass come twice, for inputs and for weights.
            parts = [part.data for part in (hidden_gradient, weight_gradient) if part is not None]
            foreach_mul(parts, gradient.to(parts[0].dtype))  # wide loads, unlike mul_ by a number on the device
            ctx.is_scaled = True
        return hidden_gradient, weight_gradient, None, None

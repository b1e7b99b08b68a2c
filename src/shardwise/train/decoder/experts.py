"""Routed experts: each token goes to its best few, on whichever rank they live.

Shapes: T tokens, K copies of each, D hidden, F width of one expert, E experts of this rank.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812  (the field's name for it)
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from shardwise.train.decoder.config import DecoderConfig
from shardwise.train.decoder.groups import ALONE, local
from shardwise.train.exchange import exchange_rows
from shardwise.train.torch_private import grouped_mm


class Experts(nn.Module):
    """The stacked weights of all experts, gate above up, as transformers stores them."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        num, hidden, width = config.num_experts, config.hidden_size, config.intermediate_size
        self.gate_up_proj = nn.Parameter(torch.empty(num, 2 * width, hidden))
        self.down_proj = nn.Parameter(torch.empty(num, hidden, width))
        self.is_whole = True
        """Whether every rank of a tensor-parallel group has all of them."""

    def forward(self, x_TD: Tensor, counts_E: Tensor) -> Tensor:
        """Outputs of rows that are sorted by expert; expert ``e`` computes ``counts_E[e]`` of them."""
        gate_up, down = local(self.gate_up_proj), local(self.down_proj)
        if x_TD.is_cuda and x_TD.dtype == torch.bfloat16:
            ends = counts_E.cumsum(0).to(torch.int32)
            hidden = _gated(grouped_mm(x_TD, gate_up.transpose(1, 2), offs=ends))
            return grouped_mm(hidden, down.transpose(1, 2), offs=ends)
        pieces = x_TD.split(counts_E.tolist())
        return torch.cat(
            [F.linear(_gated(F.linear(piece, gate_up[e])), down[e]) for e, piece in enumerate(pieces)], dim=0
        )


def _gated(gate_up: Tensor) -> Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up


class MoeFeedForward(nn.Module):
    """Router, experts, and the weighted sum of their answers."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.gate = Router(config)
        self.experts = Experts(config)
        self.num_experts = config.num_experts
        self.groups = ALONE

    def forward(self, x_BSD: Tensor) -> Tensor:
        """``(B, S, D)`` to the same: tokens to experts, through them, back, and summed with their weights."""
        x_TD = x_BSD.flatten(0, 1)
        weights_TK, experts_TK = self.gate(x_TD)
        out_TD = through_experts(
            x_TD, weights_TK, experts_TK, num_experts=self.num_experts, compute=self.experts, group=self.groups.ep
        )
        return out_TD.view_as(x_BSD)


def through_experts(
    x_TD: Tensor,
    weights_TK: Tensor,
    experts_TK: Tensor,
    *,
    num_experts: int,
    compute: Callable[[Tensor, Tensor], Tensor],
    group: ProcessGroup | None,
) -> Tensor:
    """``(T, D)`` to the same: copies of tokens go to their experts, and their answers back to a weighted sum.

    Args:
        x_TD: this rank's tokens.
        weights_TK: what the answer of each token's every expert counts.
        experts_TK: those experts.
        num_experts: of all ranks together.
        compute: this rank's experts: rows that are sorted by expert, and how many each gets, to answers.
        group: the ranks that divide the experts; ``None`` when each has all.
    """
    order = experts_TK.flatten().argsort(stable=True)
    counts = torch.bincount(experts_TK.flatten(), minlength=num_experts)
    copies = x_TD[order // experts_TK.size(1)]
    answers = compute(copies, counts) if group is None else _exchanged(copies, counts, compute, group)
    weighted = answers * weights_TK.flatten()[order].unsqueeze(-1).type_as(answers)
    return torch.zeros_like(x_TD).index_add(0, order // experts_TK.size(1), weighted)


def _exchanged(
    copies: Tensor, counts: Tensor, compute: Callable[[Tensor, Tensor], Tensor], group: ProcessGroup
) -> Tensor:
    received_counts = exchange_rows(counts, None, None, group).view(group.size(), -1)
    sent = counts.view(group.size(), -1).sum(1).tolist()
    received = received_counts.sum(1).tolist()
    arrived = exchange_rows(copies, sent, received, group)
    # Rows arrive by sender, then by expert; experts want them by expert.
    experts = torch.arange(received_counts.size(1), device=copies.device).repeat(group.size())
    order = experts.repeat_interleave(received_counts.flatten()).argsort(stable=True)
    answers = compute(arrived[order], received_counts.sum(0))
    back = torch.empty_like(answers).index_copy(0, order, answers)
    return exchange_rows(back, received, sent, group)


class Router(nn.Module):
    """Softmax over experts in fp32, the best ``num_experts_per_tok`` of them."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(config.num_experts, config.hidden_size))
        self.num_chosen = config.num_experts_per_tok
        self.normalises = config.normalises_routing

    def forward(self, x_TD: Tensor) -> tuple[Tensor, Tensor]:
        """Weights and experts of each token's copies, both ``(T, K)``."""
        scores_TE = F.linear(x_TD, local(self.weight)).float().softmax(dim=-1)
        weights_TK, experts_TK = scores_TE.topk(self.num_chosen, dim=-1)
        if self.normalises:
            weights_TK = weights_TK / weights_TK.sum(dim=-1, keepdim=True)
        return weights_TK, experts_TK

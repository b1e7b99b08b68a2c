"""Routed experts: each token goes to its best few, on whichever rank they live.

Rows are moved by gathers alone: a gather along a permutation has a gather along its inverse as its backward, so nothing
is added up by index. Shapes: T tokens, K copies of each, R = T K rows in the order of experts, D hidden, F width of one
expert, E experts of this rank.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812  (the field's name for it)
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from shardwise.train.decoder.config import DecoderConfig
from shardwise.train.decoder.gated import weighted_down
from shardwise.train.decoder.groups import ALONE, local
from shardwise.train.exchange import exchange_rows
from shardwise.train.routing import Routing, Scores
from shardwise.train.torch_private import grouped_mm


class Route(NamedTuple):
    """The places of token copies once rows are sorted by expert; copies are numbered token by token."""

    copies: Tensor
    """``(R,)``: the copy that stands in each row."""
    rows: Tensor
    """``(T, K)``: the row in which each copy stands."""
    counts: Tensor
    """``(E,)``: rows of each expert."""


def find_route(experts_TK: Tensor, num_experts: int) -> Route:
    """The order of rows that brings the copies of one expert together, tokens in their own order."""
    # Sorting looks at every bit of a key.
    sorted_R, copies_R = experts_TK.flatten().to(torch.int16).sort(stable=True)
    numbers_R = torch.arange(copies_R.numel(), device=copies_R.device)
    rows_TK = torch.empty_like(copies_R).scatter_(0, copies_R, numbers_R).view_as(experts_TK)
    experts_E = torch.arange(num_experts, dtype=torch.int16, device=copies_R.device)
    ends_E = torch.searchsorted(sorted_R, experts_E, right=True)
    return Route(copies=copies_R, rows=rows_TK, counts=ends_E.diff(prepend=ends_E.new_zeros(1)))


def spread_copies(x_TD: Tensor, route: Route) -> Tensor:
    """Every token once for each of its experts: ``(T, D)`` to ``(R, D)``; backward sums the gradients of the copies."""
    return _SpreadCopies.apply(x_TD, route.copies, route.rows)


def sum_copies(rows_RD: Tensor, route: Route) -> Tensor:
    """The sum over each token's copies: ``(R, D)`` to ``(T, D)``; backward gives each copy its token's gradient."""
    return _SumCopies.apply(rows_RD, route.copies, route.rows)


class _SpreadCopies(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_TD: Tensor, copies_R: Tensor, rows_TK: Tensor) -> Tensor:
        ctx.save_for_backward(rows_TK)
        return x_TD[copies_R // rows_TK.size(1)]

    @staticmethod
    def backward(ctx: Any, gradient_RD: Tensor) -> tuple[Tensor, None, None]:
        (rows_TK,) = ctx.saved_tensors
        return gradient_RD[rows_TK].sum(dim=1), None, None


class _SumCopies(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows_RD: Tensor, copies_R: Tensor, rows_TK: Tensor) -> Tensor:
        ctx.save_for_backward(copies_R)
        ctx.num_copies = rows_TK.size(1)
        return rows_RD[rows_TK].sum(dim=1)

    @staticmethod
    def backward(ctx: Any, gradient_TD: Tensor) -> tuple[Tensor, None, None]:
        (copies_R,) = ctx.saved_tensors
        return gradient_TD[copies_R // ctx.num_copies], None, None


class Experts(nn.Module):
    """The stacked weights of all experts, gate above up, as transformers stores them."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        num, hidden, width = config.num_experts, config.hidden_size, config.intermediate_size
        self.gate_up_proj = nn.Parameter(torch.empty(num, 2 * width, hidden))
        self.down_proj = nn.Parameter(torch.empty(num, hidden, width))
        self.is_whole = True
        """Whether every rank of a tensor-parallel group has all of them."""

    def forward(self, x_RD: Tensor, counts_E: Tensor, weights_R: Tensor | None = None) -> Tensor:
        """Outputs of rows that are sorted by expert, of which expert ``e`` computes ``counts_E[e]``.

        With ``weights_R`` each output is multiplied by its row's weight, as the narrower input of the last product is:
        then backward needs no output of an expert.
        """
        gate_up_RF = _grouped(x_RD, local(self.gate_up_proj), counts_E)
        if weights_R is not None and gate_up_RF.dtype == torch.bfloat16:
            return weighted_down(gate_up_RF, weights_R.type_as(x_RD), local(self.down_proj), _ends(counts_E))
        gate, up = gate_up_RF.chunk(2, dim=-1)
        hidden_RF = F.silu(gate) * up
        if weights_R is not None:
            hidden_RF = hidden_RF * weights_R.unsqueeze(-1).type_as(hidden_RF)
        return _grouped(hidden_RF, local(self.down_proj), counts_E)


def _grouped(x_RI: Tensor, weights_EOI: Tensor, counts_E: Tensor) -> Tensor:
    """The product of every row with its expert's matrix, ``(R, O)``; torch 2.11 compiles grouped ones in bf16 alone."""
    if x_RI.dtype == torch.bfloat16:
        return grouped_mm(x_RI, weights_EOI.transpose(1, 2), offs=_ends(counts_E))
    pieces = x_RI.split(counts_E.tolist())
    return torch.cat([F.linear(piece, weights_EOI[e]) for e, piece in enumerate(pieces)], dim=0)


def _ends(counts_E: Tensor) -> Tensor:
    """The first row after those of each expert, as grouped products want it."""
    return counts_E.cumsum(0).to(torch.int32)


class MoeFeedForward(nn.Module):
    """Router, experts, and the weighted sum of their answers."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.gate = Router(config)
        self.experts = Experts(config)
        self.num_experts = config.num_experts
        self.groups = ALONE
        self.is_balanced = False
        """Whether an auxiliary loss asks for the router's probabilities."""

    def forward(self, x_BSD: Tensor) -> Tensor:
        """``(B, S, D)`` to the same: tokens to experts, through them, back, and summed with their weights."""
        return self.routed(x_BSD)[0]

    def routed(self, x_BSD: Tensor) -> tuple[Tensor, Routing]:
        """Return the output of ``forward``, and how the router spread the tokens."""
        x_TD = x_BSD.flatten(0, 1)
        scores_TE = self.gate.scores(x_TD)
        weights_TK, experts_TK = self.gate.chosen(scores_TE)
        route = find_route(experts_TK, self.num_experts)
        out_TD = through_experts(
            x_TD,
            weights_TK,
            route,
            compute=self.experts,
            group=self.groups.ep,
        )
        scores = Scores(route.counts, scores_TE.sum(0)) if self.is_balanced else None
        return out_TD.view_as(x_BSD), Routing(route.counts, scores)


def through_experts(
    x_TD: Tensor,
    weights_TK: Tensor,
    route: Route,
    *,
    compute: Callable[..., Tensor],
    group: ProcessGroup | None,
) -> Tensor:
    """``(T, D)`` to the same: copies of tokens go to their experts, and their answers back to a weighted sum.

    Args:
        x_TD: this rank's tokens.
        weights_TK: what the answer of each token's every expert counts.
        route: to those experts, of all ranks together.
        compute: this rank's experts: rows that are sorted by expert, and how many each gets, to answers; without a
            group it is given the weights of its rows as well, and multiplies by them.
        group: the ranks that divide the experts; ``None`` when each has all.
    """
    weights_R = spread_copies(weights_TK.flatten(), route._replace(rows=route.rows.view(-1, 1)))
    copies_RD = spread_copies(x_TD, route)
    if group is None:
        return sum_copies(compute(copies_RD, route.counts, weights_R), route)
    answers_RD = _exchanged(copies_RD, route, compute, group)
    return sum_copies(answers_RD * weights_R.unsqueeze(-1).type_as(answers_RD), route)


def _exchanged(copies_RD: Tensor, route: Route, compute: Callable[..., Tensor], group: ProcessGroup) -> Tensor:
    """The answers of experts that the ranks of a group divide, in the order in which rows were sent."""
    counts = route.counts
    received_counts = exchange_rows(counts, None, None, group).view(group.size(), -1)
    sent = counts.view(group.size(), -1).sum(1).tolist()
    received = received_counts.sum(1).tolist()
    arrived = exchange_rows(copies_RD, sent, received, group)
    # Rows arrive by sender, then by expert; experts want them by expert.
    experts = torch.arange(received_counts.size(1), device=copies_RD.device).repeat(group.size())
    own = find_route(experts.repeat_interleave(received_counts.flatten()).unsqueeze(1), received_counts.size(1))
    answers = compute(spread_copies(arrived, own), received_counts.sum(0))
    return exchange_rows(sum_copies(answers, own), received, sent, group)


class Router(nn.Module):
    """Softmax over experts in fp32, the best ``num_experts_per_tok`` of them."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(config.num_experts, config.hidden_size))
        self.num_chosen = config.num_experts_per_tok
        self.normalises = config.normalises_routing

    def forward(self, x_TD: Tensor) -> tuple[Tensor, Tensor]:
        """Weights and experts of each token's copies, both ``(T, K)``."""
        return self.chosen(self.scores(x_TD))

    def scores(self, x_TD: Tensor) -> Tensor:
        """The probability of every expert, ``(T, E)``, in fp32."""
        return F.linear(x_TD, local(self.weight)).float().softmax(dim=-1)

    def chosen(self, scores_TE: Tensor) -> tuple[Tensor, Tensor]:
        """Weights and experts of each token's copies, both ``(T, K)``."""
        weights_TK, experts_TK = scores_TE.topk(self.num_chosen, dim=-1)
        if self.normalises:
            weights_TK = weights_TK / weights_TK.sum(dim=-1, keepdim=True)
        return weights_TK, experts_TK

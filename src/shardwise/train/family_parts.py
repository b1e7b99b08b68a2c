"""Modules that stand in a model of transformers for those of which a rank holds a part.

Shapes: B sequences, S tokens, D hidden, V vocabulary (this rank's part), T tokens of this rank, K experts of each.
"""

import torch
from torch import Tensor, nn
from torch.func import functional_call

from shardwise.train.decoder.experts import Experts, find_route, through_experts
from shardwise.train.decoder.groups import ALONE, BlockGroups, local

__all__ = ["DividedTable", "FamilyExperts", "is_no_mask", "no_mask"]


def no_mask(device: torch.device) -> Tensor:
    """Stands for no mask where a class of transformers, given none, would make one of the part that it sees.

    A class hands on what has the dims of a finished mask; :func:`is_no_mask` finds it again before attention.
    """
    return torch.empty((1, 1, 0, 0), dtype=torch.bool, device=device)


def is_no_mask(mask: object) -> bool:
    """Whether it is what :func:`no_mask` made."""
    return isinstance(mask, Tensor) and mask.shape == (1, 1, 0, 0)


class DividedTable(nn.Module):
    """A family's token table that looks tokens up in this rank's rows."""

    def __init__(self, table: nn.Embedding) -> None:
        super().__init__()
        self.weight = table.weight
        for name, buffer in table.named_buffers(recurse=False):
            self.register_buffer(name, buffer, persistent=False)
        self.table = [table]  # in a list, so that it is no part of this one
        self.groups = ALONE

    def forward(self, ids_BS: Tensor) -> Tensor:
        """``(B, S)`` to ``(B, S, D)``; divided along the sequence under sequence parallelism."""
        rows_VD, group = local(self.weight), self.groups.tp
        tensors = {"weight": rows_VD, **dict(self.named_buffers())}
        if group is None:
            return functional_call(self.table[0], tensors, (ids_BS,))
        shifted = ids_BS - group.rank() * rows_VD.size(0)
        is_here = (shifted >= 0) & (shifted < rows_VD.size(0))
        own = functional_call(self.table[0], tensors, (shifted.clamp(0, rows_VD.size(0) - 1),))
        return self.groups.leave(own * is_here.unsqueeze(-1))

    def join(self, groups: BlockGroups) -> None:
        """Work in these groups from now on; the row of padding has a gradient nowhere."""
        self.groups, table = groups, self.table[0]
        if groups.tp is not None and table.padding_idx is not None:
            rows = self.weight.size(0) // groups.tp_size
            own = table.padding_idx - groups.tp.rank() * rows
            table.padding_idx = own if 0 <= own < rows else None


class FamilyExperts(Experts):
    """A family's routed experts, which take tokens that its own router has sent to them."""

    def __init__(self, experts: nn.Module) -> None:
        nn.Module.__init__(self)
        self.gate_up_proj = experts.get_parameter("gate_up_proj")
        self.down_proj = experts.get_parameter("down_proj")
        self.num_experts = self.gate_up_proj.size(0)
        self.is_whole = True
        self.groups = ALONE

    def forward(  # type: ignore[override]  # the family's router calls it
        self, x_TD: Tensor, experts_TK: Tensor, weights_TK: Tensor
    ) -> Tensor:
        """``(T, D)`` to the same: tokens to experts, through them, back, and summed with their weights."""
        route = find_route(experts_TK, self.num_experts)
        return through_experts(x_TD, weights_TK, route, compute=super().forward, group=self.groups.ep)

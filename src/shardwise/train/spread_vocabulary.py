"""The token table and the head divided by vocabulary row over data-parallel ranks, and never gathered.

FSDP gathers both matrices and scatters their gradients in fp32, though a rank needs only the rows of its tokens. Here
the tokens travel instead: every rank looks up, or multiplies with, its own rows for the tokens of all ranks. For a
vocabulary of 128,256 and 8,192 tokens a rank that moves a sixth of the bytes, and neither gathered matrices nor
their whole gradients ever exist. Gradients of the rows come out summed over all ranks' tokens.

Shapes: B sequences and T tokens of this rank, n ranks, S tokens of a sequence, D hidden, V rows of this rank.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

from shardwise.step.native_engine import can_spread_vocabulary
from shardwise.train.exchange import exchanged_sum, gathered, scattered_rows
from shardwise.train.job import Job
from shardwise.train.mesh import Mesh


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """The ranks that divide the vocabulary, and the dtype they compute in."""

    group: ProcessGroup
    dtype: torch.dtype
    """Rows are kept in fp32 and looked up, or multiplied with, in this."""

    @property
    def num_ranks(self) -> int:
        """Ranks that divide the rows among them."""
        return self.group.size()


def can_spread(job: Job, *, has_own_matrices: bool) -> bool:
    """Whether the plan divides the matrices of this job's vocabulary so, and the model has them."""
    vocab_size = int(str(job.model_config["vocab_size"]))
    can = can_spread_vocabulary(layout=job.layout, recipe=job.recipe, vocab_size=vocab_size)
    return bool(job.layout.spread_vocabulary) and has_own_matrices and can


def spread_rows(owner: nn.Module, mesh: Mesh) -> None:
    """Keep this rank's rows of the owner's filled matrix."""
    whole: nn.Parameter = owner.weight
    owner.weight = nn.Parameter(_own_rows(whole.detach(), mesh.shards), requires_grad=whole.requires_grad)


def _own_rows(whole_VD: Tensor, shards: DeviceMesh) -> DTensor:
    rows = whole_VD.size(0) // shards.size()
    part = whole_VD.narrow(0, shards.get_local_rank() * rows, rows).clone()
    return DTensor.from_local(
        part, shards, (Shard(0),), run_check=False, shape=whole_VD.shape, stride=whole_VD.stride()
    )


def spread_lookup(ids_BS: Tensor, table_VD: Tensor, spread: Spread, *, padding_row: int | None = None) -> Tensor:
    """Rows of the whole table for this rank's tokens: ``(B, S, D)``; the padding row gets no gradient."""
    found: Tensor = _Lookup.apply(ids_BS, table_VD, spread, padding_row)
    return found


def tokens_of_all(hidden_TD: Tensor, spread: Spread) -> Tensor:
    """The tokens of all ranks: ``(n T, D)``; backward sums the ranks' gradients in fp32 and keeps this rank's."""
    tokens: Tensor = _TokensOfAll.apply(hidden_TD, spread)
    return tokens


def share_of_sum(loss: Tensor, spread: Spread) -> Tensor:
    """A loss that every rank computed over all tokens, counted once over them; its gradient stays that of the whole."""
    return loss - loss.detach() * (1 - 1 / spread.num_ranks)


def is_own(ids: Tensor, *, rows: int, spread: Spread) -> tuple[Tensor, Tensor]:
    """Ids counted from this rank's first row, and which of them are its own."""
    shifted = ids - spread.group.rank() * rows
    return shifted, (shifted >= 0) & (shifted < rows)


class _Lookup(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, ids_BS: Tensor, table_VD: Tensor, spread: Spread, padding_row: int | None) -> Tensor:
        rows = table_VD.size(0)
        ids = gathered(ids_BS, spread.group)
        shifted, is_here = is_own(ids, rows=rows, spread=spread)
        # One row more than there are stands for padding and for tokens of other ranks' rows; backward leaves it out.
        is_trained = is_here if padding_row is None else is_here & (ids != padding_row)
        ctx.save_for_backward(torch.where(is_trained, shifted, rows))
        ctx.spread, ctx.rows = spread, rows
        found = table_VD[shifted.clamp(0, rows - 1)].to(spread.dtype) * is_here.unsqueeze(-1)
        # Exact in any dtype: of the ranks' summands one is not zero.
        return scattered_rows(found, spread.group)

    @staticmethod
    def backward(ctx: Any, gradient_BSD: Tensor) -> tuple[None, Tensor, None, None]:
        (index,) = ctx.saved_tensors
        everyones = gathered(gradient_BSD, ctx.spread.group)
        rows = ctx.rows
        summed = torch.ops.aten.embedding_dense_backward(everyones, index, rows + 1, rows, False)
        return None, summed[:rows].float(), None, None


class _TokensOfAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden_TD: Tensor, spread: Spread) -> Tensor:
        ctx.spread = spread
        return gathered(hidden_TD, spread.group)

    @staticmethod
    def backward(ctx: Any, gradient_TD: Tensor) -> tuple[Tensor, None]:
        return exchanged_sum(gradient_TD, ctx.spread.group).to(gradient_TD.dtype), None

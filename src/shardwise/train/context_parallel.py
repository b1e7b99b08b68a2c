"""Attention over a sequence that is divided over ranks: queries stay, keys and values are gathered.

Each rank holds two pieces of every sequence, one from the front and its mirror image from the back, so that causal
attention gives all ranks equal work (Llama 3, arXiv:2407.21783, section 3.3.2, does the same).
Shapes: B sequences, S tokens of this rank, N heads, K key-value heads, H head size.
"""

import torch
import torch.nn.functional as F  # noqa: N812  (the field's name for it)
from torch import Tensor
from torch.distributed import ProcessGroup

from shardwise.train.document_mask import DocumentMask, masked_attention
from shardwise.train.exchange import gather_dim
from shardwise.train.torch_private import flash_attention

SEQUENCE_DIM = 1
HALF = (torch.bfloat16, torch.float16)


def pieces_of_rank(*, rank: int, cp: int) -> tuple[int, int]:
    """The two of ``2 cp`` equal pieces of a sequence that a rank holds.

    >>> pieces_of_rank(rank=1, cp=4)
    (1, 6)
    """
    return rank, 2 * cp - 1 - rank


def positions_of_rank(*, rank: int, cp: int, seq_len: int) -> Tensor:
    """Positions in the whole sequence of the tokens a rank holds, in the order it holds them."""
    positions = torch.arange(seq_len)
    if cp == 1:
        return positions
    pieces = positions.chunk(2 * cp)
    return torch.cat([pieces[piece] for piece in pieces_of_rank(rank=rank, cp=cp)])


def causal_attention(
    q_BSNH: Tensor,
    k_BSKH: Tensor,
    v_BSKH: Tensor,
    *,
    group: ProcessGroup | None,
    mask: DocumentMask | None = None,
) -> Tensor:
    """Attention of this rank's queries to every earlier token of the whole sequence: ``(B, S, N, H)``.

    With a mask, to those of the same document.
    """
    if group is None and mask is not None:
        return masked_attention(q_BSNH, k_BSKH, v_BSKH, mask)
    if group is None:
        out = F.scaled_dot_product_attention(
            q_BSNH.transpose(1, 2), k_BSKH.transpose(1, 2), v_BSKH.transpose(1, 2), is_causal=True, enable_gqa=True
        )
        return out.transpose(1, 2)
    cp = group.size()
    both_S2BKH = torch.stack((k_BSKH, v_BSKH)).permute(2, 0, 1, 3, 4)
    k_BSKH, v_BSKH = _in_order(gather_dim(both_S2BKH, 0, group), cp).permute(1, 2, 0, 3, 4).unbind(0)
    if mask is not None:
        return masked_attention(q_BSNH, k_BSKH, v_BSKH, mask)
    piece_len = q_BSNH.size(SEQUENCE_DIM) // 2
    parts = [
        _attend_prefix(q, k_BSKH, v_BSKH, (piece + 1) * piece_len)
        for q, piece in zip(q_BSNH.chunk(2, dim=SEQUENCE_DIM), pieces_of_rank(rank=group.rank(), cp=cp), strict=True)
    ]
    return torch.cat(parts, dim=SEQUENCE_DIM)


def _attend_prefix(q_BSNH: Tensor, k_BSKH: Tensor, v_BSKH: Tensor, prefix_len: int) -> Tensor:
    """The last queries of a prefix attend to all of it: the causal mask is aligned with its lower right corner."""
    q, k, v = q_BSNH.transpose(1, 2), k_BSKH[:, :prefix_len].transpose(1, 2), v_BSKH[:, :prefix_len].transpose(1, 2)
    if q.size(2) == prefix_len:
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    elif q.is_cuda and q.dtype in HALF:
        # Flash attention aligns a causal mask to the lower right (torch ``nn/attention/bias.py``).
        out = flash_attention(q, k, v, 0.0, is_causal=True)[0]
    else:
        mask = torch.ones(q.size(2), prefix_len, dtype=torch.bool, device=q.device).tril(prefix_len - q.size(2))
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
    return out.transpose(1, 2)


def _in_order(gathered: Tensor, cp: int) -> Tensor:
    """Gathered pieces stand rank by rank (first, mirror, first, mirror, ...); put them in the order of the sequence."""
    pieces = gathered.chunk(2 * cp)
    held = [piece for rank in range(cp) for piece in pieces_of_rank(rank=rank, cp=cp)]
    return torch.cat([pieces[held.index(index)] for index in range(2 * cp)])

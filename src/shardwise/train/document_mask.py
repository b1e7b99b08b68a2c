"""Attention that stops at the ends of packed documents.

Every token of a batch has its place in its own document, from 0; where places begin anew, another document begins. On a
CPU the mask is a tensor of claims; on a GPU it is a block mask of ``flex_attention``, which skips blocks of 128 by 128
tokens in which nothing is seen, so neither scores nor a whole mask are ever made there.

Shapes: B sequences, S tokens of the whole sequence, Q tokens of this rank, N heads, K key-value heads, H head size.
"""

from collections.abc import Callable
from typing import TypeAlias

import torch
import torch.nn.functional as F  # noqa: N812  (the field's name for it)
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from shardwise.train.compiled import compiled

DocumentMask: TypeAlias = Tensor | BlockMask


def document_numbers(places_BS: Tensor) -> Tensor:
    """Which document of its sequence every token belongs to.

    >>> document_numbers(torch.tensor([[0, 1, 2, 0, 1, 0]])).tolist()
    [[1, 1, 1, 2, 2, 3]]
    """
    return (places_BS == 0).cumsum(dim=1)


def document_mask(places_BS: Tensor, queries_Q: Tensor) -> DocumentMask:
    """Which tokens each query may see: earlier ones of its own document, and itself.

    Args:
        places_BS: place of every token of the whole sequences in its document.
        queries_Q: positions in the sequence of the tokens that this rank computes.
    """
    documents_BS = document_numbers(places_BS)
    if not places_BS.is_cuda:
        keys_S = torch.arange(places_BS.size(1))
        is_same_BQS = documents_BS[:, queries_Q].unsqueeze(2) == documents_BS.unsqueeze(1)
        return (is_same_BQS & (queries_Q.unsqueeze(1) >= keys_S)).unsqueeze(1)
    sees = _sees(documents_BS, queries_Q)
    size, device = places_BS.size(0), str(places_BS.device)
    return create_block_mask(sees, size, None, queries_Q.numel(), places_BS.size(1), device=device)


def masked_attention(q_BQNH: Tensor, k_BSKH: Tensor, v_BSKH: Tensor, mask: DocumentMask) -> Tensor:
    """Attention of queries to the tokens a mask lets them see: ``(B, Q, N, H)``."""
    q, k, v = (part.transpose(1, 2) for part in (q_BQNH, k_BSKH, v_BSKH))
    if isinstance(mask, BlockMask):
        out = compiled(flex_attention)(q, k, v, block_mask=mask, enable_gqa=True)
    else:
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
    return out.transpose(1, 2)


def _sees(documents_BS: Tensor, queries_Q: Tensor) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    def sees(sequence: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        del head
        place = queries_Q[query]
        return (documents_BS[sequence, place] == documents_BS[sequence, key]) & (place >= key)

    return sees

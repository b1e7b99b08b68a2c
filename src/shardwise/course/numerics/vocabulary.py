"""The token table, the head and the cross-entropy, each rank with some rows of the vocabulary.

The loss needs three small all-reduces of one number per token instead of all logits: the maximum, the sum of the
exponentials, and the logit of the right token, which only one rank has.

Shapes: B sequences, S tokens, D hidden size, V vocabulary rows of this rank.

Source: Shoeybi et al. 2019, arXiv:1909.08053, section 3; Megatron-LM ``core/tensor_parallel/cross_entropy.py``.
"""

from dataclasses import dataclass

import numpy as np

from shardwise.course.numerics.arrays import Array, Integers
from shardwise.course.numerics.tensor_parallel import complete_sums, gather_sequence
from shardwise.course.numerics.world import Program, Rank

IGNORED = -100
"""The label of a token that is not learned from (torch ``cross_entropy``'s ``ignore_index``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossKept:
    """What the loss keeps for its backward."""

    inputs_BSD: Array
    """Inputs of the head: the hidden states of the whole sequence."""
    probabilities_BSV: Array
    labels_BS: Integers
    """Labels counted from this rank's first row; tokens of other ranks fall outside its rows."""
    is_learned_BS1: Array
    """1 for tokens that count, else 0."""


def embed(rank: Rank, table_VD: Array, tokens_BS: Integers) -> Program[Array]:
    """The rows of the tokens; every rank adds those that it has, and zeros for the others."""
    local_BS, is_here_BS = _own_rows(rank, table_VD, tokens_BS)
    partial_BSD = table_VD[local_BS] * is_here_BS[..., None]
    return (yield from complete_sums(rank, partial_BSD, name="embedding"))


def embed_backward(rank: Rank, table_VD: Array, tokens_BS: Integers, dx_BsD: Array) -> Program[Array]:
    """The gradient of this rank's rows of the table."""
    dx_BSD = yield from gather_sequence(rank, dx_BsD, name="embedding")
    local_BS, is_here_BS = _own_rows(rank, table_VD, tokens_BS)
    gradient_VD = np.zeros_like(table_VD)
    np.add.at(gradient_VD, local_BS[is_here_BS], dx_BSD[is_here_BS])
    return gradient_VD


def cross_entropy(rank: Rank, head_VD: Array, x_BsD: Array, labels_BS: Integers) -> Program[tuple[float, LossKept]]:
    """The sum of the losses of all tokens that count."""
    x_BSD = yield from gather_sequence(rank, x_BsD, name="head")
    logits_BSV = x_BSD @ head_VD.T
    group, name = rank.groups.tensor, "vocabulary-parallel loss"
    own_maximum_BS1 = logits_BSV.max(axis=-1, keepdims=True)
    maximum_BS1 = yield from rank.all_reduce(own_maximum_BS1, group, name=name, is_maximum=True)
    weights_BSV = np.exp(logits_BSV - maximum_BS1)
    total_BS1 = yield from rank.all_reduce(weights_BSV.sum(axis=-1, keepdims=True), group, name=name)
    local_BS, is_here_BS = _own_rows(rank, head_VD, labels_BS)
    own_target_BS1 = np.take_along_axis(logits_BSV, local_BS[..., None], axis=-1) * is_here_BS[..., None]
    target_BS1 = yield from rank.all_reduce(own_target_BS1, group, name=name)
    is_learned_BS1 = (labels_BS != IGNORED)[..., None].astype(x_BSD.dtype)
    losses_BS1 = (np.log(total_BS1) + maximum_BS1 - target_BS1) * is_learned_BS1
    kept = LossKept(
        inputs_BSD=x_BSD,
        probabilities_BSV=weights_BSV / total_BS1,
        labels_BS=np.where(is_here_BS, local_BS, -1),
        is_learned_BS1=is_learned_BS1,
    )
    return float(losses_BS1.sum()), kept


def logit_gradient(kept: LossKept, token_weight: float) -> Array:
    """Probabilities less one at the right token, times what one token weighs in the loss."""
    rows_V = np.arange(kept.probabilities_BSV.shape[-1])
    is_target_BSV = kept.labels_BS[..., None] == rows_V
    weight_BS1 = kept.is_learned_BS1 * kept.is_learned_BS1.dtype.type(token_weight)
    gradient_BSV: Array = (kept.probabilities_BSV - is_target_BSV) * weight_BS1
    return gradient_BSV


def head_input_gradient(rank: Rank, dlogits_BSV: Array, head_VD: Array) -> Program[Array]:
    """The gradient of the head's input, summed over everybody's rows."""
    return (yield from complete_sums(rank, dlogits_BSV @ head_VD, name="head"))


def _own_rows(rank: Rank, table_VD: Array, tokens_BS: Integers) -> tuple[Integers, Array]:
    """Rows counted from this rank's first (0 for tokens of other ranks), and which tokens are here."""
    rows_per_rank = -(-rank.plan.model.vocab_size // rank.layout.tp)
    local_BS = tokens_BS - rank.index_in(rank.groups.tensor) * rows_per_rank
    is_here_BS = (local_BS >= 0) & (local_BS < table_VD.shape[0])
    return np.where(is_here_BS, local_BS, 0), is_here_BS

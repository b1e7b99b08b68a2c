"""Context parallelism: each rank has part of every sequence, and attention still sees all of it.

Three ways, as the engines do it. *Ring* (Megatron): keys and values travel round the ranks, each rank attends to the
block that it has just received. *Gather* (torch): every rank gathers all keys and values, and their gradients travel
round the ranks. *Exchange* (DeepSpeed, Ulysses): ranks trade tokens for heads, attend to whole sequences with some of
the heads, and trade back.

Shapes: B sequences, S tokens of this rank, T tokens of all ranks, H query heads, K key-value heads, E
elements of a head.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from shardwise.course.numerics.arrays import Array, Arrays, Integers
from shardwise.course.numerics.attention import heads_of, start_attention, start_attention_gradient
from shardwise.course.numerics.world import Program, Rank

Balance = Literal["zigzag", "contiguous"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionKept:
    """What attention keeps for its backward."""

    q_BSHE: Array
    k_BTKE: Array
    v_BTKE: Array
    output_BSHE: Array
    log_sum_BKM1: Array
    num_scores: int = 0

    @property
    def arrays(self) -> Arrays:
        """Everything that is kept."""
        return (self.q_BSHE, self.k_BTKE, self.v_BTKE, self.output_BSHE, self.log_sum_BKM1)


def positions_of(*, member: int, cp: int, seq_len: int, balance: Balance = "zigzag") -> Integers:
    """The tokens of a sequence that one context-parallel rank has.

    Under a causal mask late tokens see more keys. Contiguous parts leave the first rank almost idle; zig-zag gives
    every rank one early piece and the late piece opposite to it, and with that equal work.

    >>> positions_of(member=0, cp=2, seq_len=8).tolist(), positions_of(member=1, cp=2, seq_len=8).tolist()
    ([0, 1, 6, 7], [2, 3, 4, 5])
    """
    if balance == "contiguous" or cp == 1:
        return np.array_split(np.arange(seq_len), cp)[member]
    pieces = np.array_split(np.arange(seq_len), 2 * cp)
    return np.concatenate([pieces[member], pieces[2 * cp - 1 - member]])


def attend(
    rank: Rank, qkv: tuple[Array, Array, Array], places: tuple[Integers, ...]
) -> Program[tuple[Array, AttentionKept]]:
    """Causal attention over the whole sequence: the output for this rank's tokens, and what the backward needs.

    Args:
        rank: with its layout and engine.
        qkv: queries, keys and values of this rank's tokens.
        places: positions of every member's tokens.
    """
    if rank.layout.cp == 1:
        kept = _attend_whole(qkv, places[0], places[0])
    elif rank.profile.sharding == "megatron":
        kept = yield from _attend_ring(rank, qkv, places)
    elif rank.profile.sharding == "deepspeed":
        return (yield from _attend_exchanged(rank, qkv, places))
    else:
        kept = yield from _attend_gathered(rank, qkv, places)
    return kept.output_BSHE, kept


def attend_backward(
    rank: Rank, do_BSHE: Array, kept: AttentionKept, places: tuple[Integers, ...]
) -> Program[tuple[Array, Array, Array]]:
    """Gradients of this rank's queries, keys and values."""
    if rank.layout.cp == 1:
        return _whole_backward(do_BSHE, kept, places[0], places[0])
    if rank.profile.sharding == "megatron":
        return (yield from _ring_backward(rank, do_BSHE, kept, places))
    if rank.profile.sharding == "deepspeed":
        return (yield from _exchanged_backward(rank, do_BSHE, kept, places))
    return (yield from _gathered_backward(rank, do_BSHE, kept, places))


def _attend_whole(qkv: tuple[Array, Array, Array], positions_S: Integers, positions_T: Integers) -> AttentionKept:
    q_BSHE, k_BTKE, v_BTKE = qkv
    attention = start_attention(q_BSHE, positions_S, k_BTKE.shape[2])
    attention.add(k_BTKE, v_BTKE, positions_T)
    output_BSHE, log_sum = attention.finish(q_BSHE.shape[2])
    return AttentionKept(
        q_BSHE=q_BSHE,
        k_BTKE=k_BTKE,
        v_BTKE=v_BTKE,
        output_BSHE=output_BSHE,
        log_sum_BKM1=log_sum,
        num_scores=attention.num_scores,
    )


def _whole_backward(
    do_BSHE: Array, kept: AttentionKept, positions_S: Integers, positions_T: Integers
) -> tuple[Array, Array, Array]:
    gradient = start_attention_gradient(do_BSHE, kept.q_BSHE, kept.output_BSHE, kept.log_sum_BKM1, positions_S)
    dk_BTKE, dv_BTKE = gradient.add(kept.k_BTKE, kept.v_BTKE, positions_T)
    return heads_of(gradient.query_gradient_BKME, kept.q_BSHE.shape[2]), dk_BTKE, dv_BTKE


def _attend_ring(rank: Rank, qkv: tuple[Array, Array, Array], places: tuple[Integers, ...]) -> Program[AttentionKept]:
    """``cp - 1`` hops; in hop i a rank attends to the block of the member i places before it."""
    q_BSHE, k_BSKE, v_BSKE = qkv
    group = rank.groups.context
    here = rank.index_in(group)
    attention = start_attention(q_BSHE, places[here], k_BSKE.shape[2])
    attention.add(k_BSKE, v_BSKE, places[here])
    k_BTKE, v_BTKE = k_BSKE, v_BSKE
    for hop in range(1, group.size):
        k_BTKE, v_BTKE = yield from rank.pass_on((k_BTKE, v_BTKE), group, name="context parallel send_recv")
        attention.add(k_BTKE, v_BTKE, places[here - hop])
    output_BSHE, log_sum = attention.finish(q_BSHE.shape[2])
    return AttentionKept(
        q_BSHE=q_BSHE,
        k_BTKE=k_BSKE,
        v_BTKE=v_BSKE,
        output_BSHE=output_BSHE,
        log_sum_BKM1=log_sum,
        num_scores=attention.num_scores,
    )


def _ring_backward(
    rank: Rank, do_BSHE: Array, kept: AttentionKept, places: tuple[Integers, ...]
) -> Program[tuple[Array, Array, Array]]:
    """Keys and values go round once more, and their gradients follow them one hop behind, the last hop home.

    ``cp - 1`` hops of each: twice the bytes of the forward.
    """
    group = rank.groups.context
    here = rank.index_in(group)
    gradient = start_attention_gradient(do_BSHE, kept.q_BSHE, kept.output_BSHE, kept.log_sum_BKM1, places[here])
    dk_own, dv_own = gradient.add(kept.k_BTKE, kept.v_BTKE, places[here])
    k_BTKE, v_BTKE = kept.k_BTKE, kept.v_BTKE
    following: Arrays = ()
    for hop in range(1, group.size):
        k_BTKE, v_BTKE = yield from rank.pass_on((k_BTKE, v_BTKE), group, name="context parallel send_recv")
        if following:
            following = yield from rank.pass_on(following, group, name="context parallel send_recv")
        added = gradient.add(k_BTKE, v_BTKE, places[here - hop])
        following = tuple(old + new for old, new in zip(following, added, strict=True)) if following else added
    dk_home, dv_home = yield from rank.pass_on(following, group, name="context parallel send_recv")
    return heads_of(gradient.query_gradient_BKME, kept.q_BSHE.shape[2]), dk_own + dk_home, dv_own + dv_home


def _attend_gathered(
    rank: Rank, qkv: tuple[Array, Array, Array], places: tuple[Integers, ...]
) -> Program[AttentionKept]:
    q_BSHE, k_BSKE, v_BSKE = qkv
    here = rank.index_in(rank.groups.context)
    k_BTKE, v_BTKE = yield from _gather_keys(rank, k_BSKE, v_BSKE)
    kept = _attend_whole((q_BSHE, k_BTKE, v_BTKE), places[here], np.concatenate(places))
    return AttentionKept(
        q_BSHE=q_BSHE,
        k_BTKE=k_BSKE,
        v_BTKE=v_BSKE,
        output_BSHE=kept.output_BSHE,
        log_sum_BKM1=kept.log_sum_BKM1,
        num_scores=kept.num_scores,
    )


def _gather_keys(rank: Rank, k_BSKE: Array, v_BSKE: Array) -> Program[tuple[Array, Array]]:
    both = np.concatenate([k_BSKE, v_BSKE], axis=-1)
    pieces = yield from rank.all_gather(both, rank.groups.context, name="context parallel all_gather")
    k_BTKE, v_BTKE = np.split(np.concatenate(pieces, axis=1), 2, axis=-1)
    return k_BTKE, v_BTKE


def _gathered_backward(
    rank: Rank, do_BSHE: Array, kept: AttentionKept, places: tuple[Integers, ...]
) -> Program[tuple[Array, Array, Array]]:
    """Keys and values are gathered again; their gradients go round, one hop after every block, the last hop home.

    ``cp`` hops (torch ``_templated_ring_attention_backward``): a rank's own block begins them.
    """
    group = rank.groups.context
    here = rank.index_in(group)
    k_BTKE, v_BTKE = yield from _gather_keys(rank, kept.k_BTKE, kept.v_BTKE)
    bounds = np.cumsum([len(one) for one in places])[:-1]
    k_blocks, v_blocks = np.split(k_BTKE, bounds, axis=1), np.split(v_BTKE, bounds, axis=1)
    gradient = start_attention_gradient(do_BSHE, kept.q_BSHE, kept.output_BSHE, kept.log_sum_BKM1, places[here])
    following: Arrays = ()
    for hop in range(group.size):
        added = gradient.add(k_blocks[here - hop], v_blocks[here - hop], places[here - hop])
        following = tuple(old + new for old, new in zip(following, added, strict=True)) if following else added
        following = yield from rank.pass_on(following, group, name="context parallel send_recv")
    dk_BSKE, dv_BSKE = following
    return heads_of(gradient.query_gradient_BKME, kept.q_BSHE.shape[2]), dk_BSKE, dv_BSKE


def _attend_exchanged(
    rank: Rank, qkv: tuple[Array, Array, Array], places: tuple[Integers, ...]
) -> Program[tuple[Array, AttentionKept]]:
    """Ulysses: whole sequences with some of the heads in between."""
    everywhere = np.concatenate(places)
    q_BThE, k_BThE, v_BThE = yield from _heads_for_tokens(rank, qkv)
    kept = _attend_whole((q_BThE, k_BThE, v_BThE), everywhere, everywhere)
    (output_BSHE,) = yield from _tokens_for_heads(rank, (kept.output_BSHE,), places)
    return output_BSHE, kept


def _exchanged_backward(
    rank: Rank, do_BSHE: Array, kept: AttentionKept, places: tuple[Integers, ...]
) -> Program[tuple[Array, Array, Array]]:
    everywhere = np.concatenate(places)
    (do_whole,) = yield from _heads_for_tokens(rank, (do_BSHE,))
    gradients = _whole_backward(do_whole, kept, everywhere, everywhere)
    dq_BSHE, dk_BSKE, dv_BSKE = yield from _tokens_for_heads(rank, gradients, places)
    return dq_BSHE, dk_BSKE, dv_BSKE


def _heads_for_tokens(rank: Rank, tensors: Arrays) -> Program[Arrays]:
    """Give every member its share of the heads of this rank's tokens; get its own heads of all tokens."""
    cp = rank.layout.cp
    cut = [np.split(x, cp, axis=2) for x in tensors]
    widths = np.cumsum([pieces[0].shape[2] for pieces in cut])[:-1]
    parcels = tuple(np.concatenate([pieces[member] for pieces in cut], axis=2) for member in range(cp))
    received = yield from rank.all_to_all(parcels, rank.groups.context, name="context parallel all_to_all")
    return tuple(np.split(np.concatenate(received, axis=1), widths, axis=2))


def _tokens_for_heads(rank: Rank, tensors: Arrays, places: tuple[Integers, ...]) -> Program[Arrays]:
    """The way back: every member's tokens of this rank's heads; this rank's tokens of all heads."""
    bounds = np.cumsum([len(one) for one in places])[:-1]
    widths = [x.shape[2] for x in tensors]
    parcels = tuple(np.split(np.concatenate(tensors, axis=2), bounds, axis=1))
    received = yield from rank.all_to_all(parcels, rank.groups.context, name="context parallel all_to_all")
    cut = [np.split(x, np.cumsum(widths)[:-1], axis=2) for x in received]
    return tuple(np.concatenate([pieces[i] for pieces in cut], axis=2) for i in range(len(tensors)))

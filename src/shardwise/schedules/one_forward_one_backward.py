"""1F1B and its interleaved form."""

from collections.abc import Iterator

from shardwise.schedules.actions import Action, Degrees, Order
from shardwise.schedules.alternation import alternate


def one_f_one_b_order(rank: int, degrees: Degrees) -> Order:
    """1F1B: ``p - 1 - rank`` forwards, then one forward and one backward by turns.

    ``p - rank`` micro-batches are in flight: the forward of the first turn comes before its backward.

    Source: Narayanan et al. 2021, arXiv:2104.04473, section 2.2.1; torch's ``Schedule1F1B`` and Megatron-LM's
        ``forward_backward_pipelining_without_interleaving``.
    """
    numbers = range(degrees.num_microbatches)
    return alternate(
        forwards=[Action("forward", rank, number) for number in numbers],
        backwards=[Action("backward", rank, number) for number in numbers],
        num_warmup=min(degrees.num_microbatches, degrees.pp - 1 - rank),
    )


def interleaved_order(rank: int, degrees: Degrees) -> Order:
    """Interleaved 1F1B: rounds of micro-batches through chunk after chunk, by turns with rounds of backwards.

    Megatron's rounds hold ``num_microbatches_per_round`` (its ``microbatch_group_size_per_vp_stage``, p unless told
    otherwise) and the last one what remains; torch divides the micro-batches evenly. Where p divides m both are the
    same. ``num_extra_warmup`` is 1 when Megatron overlaps expert communication with the other direction's compute.

    Source: Narayanan et al. 2021, arXiv:2104.04473, section 2.2.2; NVIDIA/Megatron-LM
        megatron/core/pipeline_parallel/schedules.py (``get_schedule_table``, ``get_pp_rank_microbatches``); torch's
        ``ScheduleInterleaved1F1B``.
    """
    pp, vpp, per_round = degrees.pp, degrees.vpp, degrees.num_microbatches_per_round or degrees.pp
    turns = tuple(interleaved_turns(vpp=vpp, num_microbatches=degrees.num_microbatches, per_round=per_round))
    num_warmup = (vpp - 1) * per_round + 2 * (pp - 1 - rank) + degrees.num_extra_warmup
    return alternate(
        forwards=[Action("forward", turn * pp + rank, number) for turn, number in turns],
        backwards=[Action("backward", (vpp - 1 - turn) * pp + rank, number) for turn, number in turns],
        num_warmup=min(num_warmup, len(turns)),
    )


def interleaved_turns(*, vpp: int, num_microbatches: int, per_round: int) -> Iterator[tuple[int, int]]:
    """Which of a rank's chunks runs which micro-batch, forward: ``(turn, micro_batch)``.

    >>> list(interleaved_turns(vpp=2, num_microbatches=3, per_round=2))
    [(0, 0), (0, 1), (1, 0), (1, 1), (0, 2), (1, 2)]
    """
    for first in range(0, num_microbatches, per_round):
        for turn in range(vpp):
            for number in range(first, min(first + per_round, num_microbatches)):
                yield turn, number


def even_round_size(*, pp: int, num_microbatches: int) -> int:
    """Micro-batches of one round when ``m // p`` rounds share them evenly, as torch does.

    >>> even_round_size(pp=4, num_microbatches=10)
    5
    """
    return num_microbatches // max(1, num_microbatches // pp)

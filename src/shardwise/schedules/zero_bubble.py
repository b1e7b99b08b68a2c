"""Zero-bubble schedules on one chunk a rank (ZB-H1, ZB-H2) and ZB-H1 interleaved."""

from shardwise.schedules.actions import Action, Degrees, Order
from shardwise.schedules.alternation import alternate_split
from shardwise.schedules.one_forward_one_backward import interleaved_turns


def zb_h1_order(rank: int, degrees: Degrees) -> Order:
    """ZB-H1: 1F1B whose weight gradients wait for ``rank`` further backwards, so that every rank holds p sets.

    With one chunk this is the handcrafted schedule of the paper; with more it is torch's
    ``ScheduleInterleavedZeroBubble``.

    Source: Qi et al. 2023, arXiv:2401.10241, section 2.2 and figure 3 (top); torch 2.13
        ``distributed/pipelining/schedules.py``.
    """
    pp, vpp, per_round = degrees.pp, degrees.vpp, degrees.num_microbatches_per_round or degrees.pp
    turns = tuple(interleaved_turns(vpp=vpp, num_microbatches=degrees.num_microbatches, per_round=per_round))
    return alternate_split(
        forwards=[Action("forward", turn * pp + rank, number) for turn, number in turns],
        backwards=[Action("backward", (vpp - 1 - turn) * pp + rank, number) for turn, number in turns],
        num_warmup=min((vpp - 1) * per_round + pp - 1 - rank, len(turns)),
        lag=rank,
    )


def zb_h2_order(rank: int, degrees: Degrees) -> Order:
    """ZB-H2: twice the forwards of ZB-H1 in front and weight gradients twice as late; every rank holds 2p - 1 sets.

    Source: Qi et al. 2023, arXiv:2401.10241, section 2.3 and figure 3 (bottom). torch has no such schedule.
    """
    numbers = range(degrees.num_microbatches)
    return alternate_split(
        forwards=[Action("forward", rank, number) for number in numbers],
        backwards=[Action("backward", rank, number) for number in numbers],
        num_warmup=min(degrees.num_microbatches, 2 * (degrees.pp - 1 - rank)),
        lag=2 * rank,
    )

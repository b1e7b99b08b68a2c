"""Counts what an order of passes keeps between a forward and the backward that needs it; no durations enter.

Predictions reach :func:`peak_sets` through ``step/in_flight.py``; the course shows the worst moments of every rank.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from shardwise.schedules.actions import Order
from shardwise.schedules.make import make_schedule
from shardwise.schedules.shape import ScheduleShape


@dataclass(frozen=True, slots=True, kw_only=True)
class InFlight:
    """The most chunks that one rank keeps at once; one micro-batch of one chunk counts as one."""

    rank: int
    num_kept: int
    """Chunks kept from the start of a forward to the end of the weight gradient, when all is kept until then."""
    num_before_backward: int
    """Chunks kept from the start of a forward to the end of the input gradient: whole activation sets."""
    num_waiting_for_weights: int
    """Chunks kept from the end of the input gradient to the end of the weight gradient: inputs and output gradients of
    the matrix products."""
    vpp: int
    """Chunks that one micro-batch runs through on the rank."""

    @property
    def kept_micro_batches_ratio(self) -> float:
        """``num_kept`` in whole-rank micro-batches: chunks over the chunks of a rank."""
        return self.num_kept / self.vpp


def peak_in_flight(shape: ScheduleShape) -> tuple[InFlight, ...]:
    """The worst moments of every rank.

    >>> [peak.num_kept for peak in peak_in_flight(ScheduleShape(name="1f1b", pp=4, num_microbatches=16))]
    [4, 3, 2, 1]
    """
    schedule = make_schedule(shape)
    vpp = schedule.chunks_per_rank
    return tuple(
        InFlight(
            rank=rank,
            num_kept=round(peak_sets(order)),
            num_before_backward=round(peak_sets(order, waiting_fraction=0.0)),
            num_waiting_for_weights=_peak_waiting(order),
            vpp=vpp,
        )
        for rank, order in enumerate(schedule.orders)
    )


def peak_sets(order: Order, *, waiting_fraction: float = 1.0, set_sizes: Sequence[float] = ()) -> float:
    """The most activation sets that an order keeps at once, in chunks.

    Args:
        order: the order of one rank.
        waiting_fraction: share of a set that is still kept between input gradient and weight gradient.
        set_sizes: size of a set of each chunk of the model; 1 for all when left out.
    """
    change_of = {
        "forward": 1.0,
        "backward": -1.0,
        "input_backward": waiting_fraction - 1.0,
        "weight_backward": -waiting_fraction,
    }
    kept = peak = 0.0
    for action in order:
        kept += change_of[action.kind] * (set_sizes[action.chunk] if set_sizes else 1.0)
        peak = max(peak, kept)
    return peak


def _peak_waiting(order: Order) -> int:
    waiting = peak = 0
    for action in order:
        waiting += (action.kind == "input_backward") - (action.kind == "weight_backward")
        peak = max(peak, waiting)
    return peak

"""Schedules that run every forward before the first backward."""

from shardwise.schedules.actions import Action, Degrees, Order


def gpipe_order(rank: int, degrees: Degrees) -> Order:
    """GPipe: all forwards, then all backwards, both from the first micro-batch to the last.

    Source: Huang et al. 2019, arXiv:1811.06965, figure 2c, which drains in reverse order; torch's ``ScheduleGPipe``
        drains in forward order, and so does this. Equal stages make no difference.
    """
    numbers = range(degrees.num_microbatches)
    return (
        *(Action("forward", rank, number) for number in numbers),
        *(Action("backward", rank, number) for number in numbers),
    )


def looped_bfs_order(rank: int, degrees: Degrees) -> Order:
    """Breadth-first: all micro-batches through one chunk, then through the next; backwards in reverse.

    Source: Lamy-Poirier 2023, arXiv:2211.05953, section 4; torch's ``ScheduleLoopedBFS``.
    """
    chunks = range(rank, degrees.pp * degrees.vpp, degrees.pp)
    numbers = range(degrees.num_microbatches)
    return (
        *(Action("forward", chunk, number) for chunk in chunks for number in numbers),
        *(Action("backward", chunk, number) for chunk in reversed(chunks) for number in reversed(numbers)),
    )

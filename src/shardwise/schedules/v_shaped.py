"""Schedules whose ranks run two chunks that lie opposite each other: ZBV and DualPipeV on the way down the model and up
again, DualPipe for micro-batches from both ends."""

from dataclasses import replace

from shardwise.schedules.actions import Degrees, Order
from shardwise.schedules.order_writer import OrderWriter


def zbv_order(rank: int, degrees: Degrees) -> Order:
    """ZBV: a V of two chunks a rank with split backwards, zero bubble where F = B = W.

    Written for at least 2p - 1 micro-batches; of fewer, those that do not exist are left out.

    Source: Qi et al. 2024, arXiv:2405.15362, section 4 (V-ZB), and arXiv:2401.10241, section 6; torch 2.13
        ``ScheduleZBVZeroBubble``, whose order this is.
    """
    pp, num_microbatches = degrees.pp, degrees.num_microbatches
    down, up = rank, 2 * pp - 1 - rank
    written = max(2 * pp - 1, num_microbatches)
    writer = OrderWriter()
    for _ in range(2 * (pp - rank) - 1):
        writer.forward(down)
    for _ in range(rank):
        writer.forward(up)
        writer.forward(down)
    for _ in range(pp - rank):
        writer.forward(up)
        _split_backward(writer, up)
    num_forwards_down = 2 * (pp - rank) - 1 + rank
    for turn in range(written - pp):
        if num_forwards_down + turn < written:
            writer.forward(down)
        _split_backward(writer, down)
        writer.forward(up)
        _split_backward(writer, up)
    _drain(writer, down=down, up=up, num_pairs=rank, num_last=pp - rank)
    return writer.order(num_microbatches=num_microbatches)


def _split_backward(writer: OrderWriter, chunk: int) -> None:
    writer.backward(chunk, is_split=True)
    writer.oldest_weight_of(chunk)


def _drain(writer: OrderWriter, *, down: int, up: int, num_pairs: int, num_last: int) -> None:
    """Write input gradients of both chunks, then those on the way down with a weight gradient each, then the rest."""
    for _ in range(num_pairs):
        writer.backward(down, is_split=True)
        writer.backward(up, is_split=True)
    for _ in range(num_last):
        writer.backward(down, is_split=True)
        writer.oldest_weight_of(down)
    for chunk in (up, down):
        for _ in range(writer.num_pending_weights):
            writer.oldest_weight_of(chunk)


def dualpipev_order(rank: int, degrees: Degrees) -> Order:
    """DualPipeV: a V whose steady part runs a forward of one chunk and a backward of the other as one block.

    Needs at least 2p micro-batches.

    Source: deepseek-ai/DualPipe, ``dualpipev.py``; torch 2.13 ``ScheduleDualPipeV``, whose order this is.
    """
    return _dualpipe_writer(rank, degrees, down=rank, up=2 * degrees.pp - 1 - rank).order()


def dualpipe_order(rank: int, degrees: Degrees) -> Order:
    """DualPipe: every rank holds one chunk of each of two copies of the model, whose micro-batches start at both ends.

    A V cut in half and laid over itself: a rank does what the rank of DualPipeV does that is as far from its end, with
    the chunk of the near end in place of the one on the way down. Where DualPipeV's last rank hands on to itself, the
    two middle ranks hand on to each other. The second half of the micro-batches runs the other way.

    Needs an even number of ranks and of micro-batches, at least two for every rank.

    Source: DeepSeek-AI 2024, arXiv:2412.19437, section 3.2.1; deepseek-ai/DualPipe, ``dualpipe.py``, whose eight steps
        these are.
    """
    pp, per_direction = degrees.pp, degrees.num_microbatches // 2
    near, far = (rank, 2 * pp - 1 - rank) if rank < pp // 2 else (2 * pp - 1 - rank, rank)
    half = replace(degrees, pp=pp // 2, num_microbatches=per_direction)
    writer = _dualpipe_writer(min(rank, pp - 1 - rank), half, down=near, up=far)
    return tuple(
        action._replace(micro_batch=action.micro_batch + per_direction) if action.chunk >= pp else action
        for action in writer.order()
    )


def _dualpipe_writer(rank: int, degrees: Degrees, *, down: int, up: int) -> OrderWriter:
    """Write the steps both have in common, by the distance of a rank from its end."""
    pp = degrees.pp
    others = pp - 1 - rank
    writer = OrderWriter()
    for _ in range(2 * others):
        writer.forward(down)
    for _ in range(rank + 1):
        writer.forward(down)
        writer.forward(up)
    for _ in range(others):
        writer.backward(up, is_split=True)
        writer.oldest_weight()
        writer.forward(up)
    for turn in range(degrees.num_microbatches - 2 * pp + rank + 1):
        if turn == 0 and others == 0:
            # The rank at the turn of the V runs its first pair one after the other: it has just made that forward's
            # input itself, and waiting for both would lengthen the bubble.
            writer.forward(down)
            writer.backward(up)
        else:
            writer.forward_and_backward(forward=down, backward=up)
        writer.forward_and_backward(forward=up, backward=down)
    for _ in range(others):
        writer.backward(up)
        writer.forward_and_backward(forward=up, backward=down)
    _drain_with_weights(writer, rank=rank, down=down, up=up, others=others)
    return writer


def _drain_with_weights(writer: OrderWriter, *, rank: int, down: int, up: int, others: int) -> None:
    """Write the last rank + 1 pairs, the later half of their backwards split; then weight gradients fill the gaps."""
    for index in range(2 * (rank + 1)):
        writer.backward(down if index % 2 else up, is_split=index > rank)
    for _ in range(others):
        writer.oldest_weight()
        writer.backward(down, is_split=True)
    for _ in range(rank + 1):
        writer.oldest_weight()

"""The one pattern behind most schedules: forwards first, then one forward and one backward by turns, then the rest."""

from collections.abc import Sequence

from shardwise.schedules.actions import Action, Order


def alternate(*, forwards: Sequence[Action], backwards: Sequence[Action], num_warmup: int) -> Order:
    """``num_warmup`` forwards, then forward and backward by turns, then the remaining backwards."""
    order = list(forwards[:num_warmup])
    for forward, backward in zip(forwards[num_warmup:], backwards, strict=False):
        order += (forward, backward)
    order += backwards[max(0, len(forwards) - num_warmup) :]
    return tuple(order)


def alternate_split(*, forwards: Sequence[Action], backwards: Sequence[Action], num_warmup: int, lag: int) -> Order:
    """Alternate as :func:`alternate` does, with each backward split in two and its weight half ``lag`` backwards later.

    From the ``lag``-th backward on, every input gradient is followed by the oldest weight gradient that is due.
    """
    inputs = [Action("input_backward", action.chunk, action.micro_batch) for action in backwards]
    weights = [Action("weight_backward", action.chunk, action.micro_batch) for action in backwards]
    order = list(forwards[:num_warmup])
    steady = forwards[num_warmup:]
    for index, input_backward in enumerate(inputs):
        if index < len(steady):
            order.append(steady[index])
        order.append(input_backward)
        if index >= lag:
            order.append(weights[index - lag])
    return (*order, *weights[max(0, len(weights) - lag) :])

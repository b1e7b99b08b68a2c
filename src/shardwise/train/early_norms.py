"""Squared norms of gradients under the backward pass: of a unit as soon as its gradients are reduced."""

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from shardwise.train.parameters import Trained, local_part
from shardwise.train.unit_entries import UnitEntries

ReducedSquares = Callable[[], Tensor | None]
"""Squares of what a unit's last reduction made, in any pieces; ``None`` where the reduction does not know."""


@dataclass(frozen=True, slots=True)
class KnownSquares:
    """What needs no second look."""

    total: Tensor | None = None
    """This rank's share of the squared norm of these gradients, in fp64."""
    entries: frozenset[int] = frozenset()
    """The ``id`` of each entry that is counted."""


class EarlyNorms:
    """Adds up the squared norms of gradients that are complete when backward leaves them.

    What parameters hold of this are weak references: a hook that held its own parameter would keep it for ever, because
    the collector does not look into a tensor's hooks.
    """

    def __init__(self, units: Sequence[UnitEntries], *, reduced: Mapping[int, ReducedSquares], adds_up: bool) -> None:
        """
        Args:
            units: whose gradients are complete together.
            reduced: by the ``id`` of a unit's module, where its reduction squares what it made.
            adds_up: whether gradients add up over micro-batches, so that the last reduction is a part of them.
        """
        self.is_last_backward = False
        """Whether gradients get nothing added after this backward; only then are norms taken."""
        self._units = tuple(units)
        self._reduced: Mapping[int, ReducedSquares] = {} if adds_up else reduced
        self._arrived = [0] * len(self._units)
        self._found: dict[int, Tensor] = {}
        own = weakref.ref(self)
        for number, unit in enumerate(self._units):
            for entry in unit.entries:
                entry.parameter.register_post_accumulate_grad_hook(_arrival(own, number))

    def take(self) -> KnownSquares:
        """What is known of this step, and begin anew."""
        found, self._found = self._found, {}
        self._arrived = [0] * len(self._units)
        self.is_last_backward = False
        if not found:
            return KnownSquares()
        entries = (id(entry) for number in found for entry in self._units[number].entries)
        return KnownSquares(torch.stack(list(found.values())).sum(), frozenset(entries))

    def arrive(self, number: int) -> None:
        """One more gradient of a unit is there; with the last one its norm is taken, on the stream that reduced it."""
        if not self.is_last_backward:
            return
        unit = self._units[number]
        self._arrived[number] += 1
        if self._arrived[number] == len(unit.entries):
            reduced = self._reduced.get(id(unit.module))
            squares = reduced() if reduced is not None else None
            own = squares.sum(dtype=torch.float64) if squares is not None else share_of_squares(unit.entries)
            self._found[number] = own


def _arrival(norms: "weakref.ref[EarlyNorms]", number: int) -> Callable[[Tensor], None]:
    def arrive(_parameter: Tensor) -> None:
        living = norms()
        if living is not None:
            living.arrive(number)

    return arrive


def share_of_squares(entries: Sequence[Trained]) -> Tensor:
    """This rank's share of a squared norm: a part that several ranks hold is counted by each in equal shares."""
    by_copies: dict[int, list[Tensor]] = {}
    for entry in entries:
        by_copies.setdefault(entry.num_copies, []).append(local_part(entry.parameter.grad))
    shares = [
        torch.stack(torch._foreach_norm(gradients, 2.0)).double().square().sum() / num_copies
        for num_copies, gradients in by_copies.items()
    ]
    return torch.stack(shares).sum()

"""The optimizer under the next forward pass: a unit's weights are updated just before its forward needs them.

After backward the norm of all gradients has to be known, but then units no longer wait for each other. Their updates go
to a stream of their own in the order of forward, a unit ahead of what is computed, and what reads a unit's weights (the
copy into a gather, or the computation itself) waits for that unit's update alone. The numbers are those of a step
that updates everything first.

Gradients stay until their update has begun and whatever may take their memory waits for it: those of the last units
until late in the forward pass, when activations are few, so the peak of a step does not rise.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.profiler import record_function

from shardwise.measure.phase_marks import OPTIMIZER
from shardwise.train.decoder.model import Decoder
from shardwise.train.parameters import Trained
from shardwise.train.unit_entries import UnitEntries, entries_by_unit

AHEAD = 2
"""Units whose update is launched before the one whose forward begins asks for it."""


def update_order(decoders: Sequence[Decoder], trained: Sequence[Trained]) -> tuple[UnitEntries, ...]:
    """Units in the order of forward, but of every chunk the first block before the token table.

    The block's weights have to be gathered after their update, which the table's update hides.
    """
    found: list[UnitEntries] = []
    for decoder in decoders:
        units = list(entries_by_unit([decoder], trained))
        if decoder.model.embed_tokens is not None and len(units) > 2 and units[1].module is decoder.model.embed_tokens:
            units[1], units[2] = units[2], units[1]
        found += units
    return tuple(found)


class Lane(Protocol):
    """Where updates run, and how others wait for one."""

    def follow(self) -> None:
        """Everything launched so far comes before what runs in the lane from now on."""

    def run(self, work: Callable[[], None]) -> object:
        """Launch ``work`` in the lane; what is returned stands for its end."""

    def wait(self, end: object) -> None:
        """What reads weights from now on waits for this end."""


class HostLane:
    """Updates run at once, where there are no streams."""

    def follow(self) -> None:
        """Nothing runs elsewhere."""

    def run(self, work: Callable[[], None]) -> object:
        """Done when this returns."""
        work()
        return None

    def wait(self, end: object) -> None:
        """Nothing to wait for."""


class StreamLane:
    """A stream beside that of the computation and those that FSDP gathers on."""

    def __init__(self, roots: Sequence[nn.Module]) -> None:
        self.stream = torch.cuda.Stream()
        self.roots = [root for root in roots if isinstance(root, FSDPModule)]

    def follow(self) -> None:
        """What the computing stream was given so far comes first."""
        self.stream.wait_stream(torch.cuda.current_stream())

    def run(self, work: Callable[[], None]) -> object:
        """On the stream, with an event at its end."""
        with torch.cuda.stream(self.stream):
            work()
            return self.stream.record_event()

    def wait(self, end: object) -> None:
        """The computing stream, the one that copies shards into gathers, and those that gradients were made on.

        Gradients are freed behind this. An allocator that is short of memory takes them from the device as soon as the
        stream they were made on is idle, so that stream waits as well.
        """
        assert isinstance(end, torch.cuda.Event)
        torch.cuda.current_stream().wait_event(end)
        for root in self.roots:
            # FSDP2's own streams; there is nothing public that waits for a single unit.
            streams = root._get_fsdp_state()._comm_ctx
            for stream in (streams.all_gather_copy_in_stream, streams.reduce_scatter_stream, streams.all_reduce_stream):
                stream.wait_event(end)


@dataclass(slots=True, kw_only=True)
class _Pending:
    number: int
    gradients: list[tuple[Trained, Tensor]] = field(default_factory=list)
    end: object = None


class LateUpdates:
    """Holds gradients back from the end of a step until the next forward pass comes to their units."""

    def __init__(
        self, units: Sequence[UnitEntries], *, update: Callable[[], object], lane: Lane, num_gathered_ahead: int
    ) -> None:
        """
        Args:
            units: in the order of forward.
            update: the optimizer's step for the parameters that hold a gradient.
            lane: where updates run.
            num_gathered_ahead: units whose weights are read when a unit's forward begins, besides its own.
        """
        self.units, self.update, self.lane, self.num_read_ahead = tuple(units), update, lane, num_gathered_ahead
        self._waiting: deque[_Pending] = deque()
        self._launched: deque[_Pending] = deque()
        for number, unit in enumerate(self.units):
            # Before FSDP's own hook, which gathers.
            unit.module.register_forward_pre_hook(self._hook(number), prepend=True)

    def begin(self) -> None:
        """Take over all gradients; the step's factor and learning rate are known to the optimizer."""
        self.settle()
        self.lane.follow()
        for number, unit in enumerate(self.units):
            gradients = [(entry, entry.local.grad) for entry in unit.entries if entry.local.grad is not None]
            for entry, _ in gradients:
                entry.local.grad = None
            if gradients:
                self._waiting.append(_Pending(number=number, gradients=gradients))

    def settle(self) -> None:
        """Update all that is left; weights and states may be read then."""
        self._advance(launched=len(self.units), awaited=len(self.units))

    @property
    def held_gradients(self) -> list[Tensor]:
        """Gradients that wait for their unit's forward, or for what follows their update."""
        return [gradient for pending in (*self._waiting, *self._launched) for _, gradient in pending.gradients]

    def _hook(self, number: int) -> Callable[..., None]:
        def before_forward(*_given: object) -> None:
            if self._waiting or self._launched:
                awaited = number + self.num_read_ahead
                self._advance(launched=awaited + AHEAD, awaited=awaited)

        return before_forward

    def _advance(self, *, launched: int, awaited: int) -> None:
        """Launch up to one unit, and wait for those up to another."""
        while self._waiting and self._waiting[0].number <= launched:
            pending = self._waiting.popleft()
            with record_function(OPTIMIZER):
                pending.end = self.lane.run(lambda pending=pending: self._take(pending))  # type: ignore[misc]
            self._launched.append(pending)
        while self._launched and self._launched[0].number <= awaited:
            self.lane.wait(self._launched.popleft().end)

    def _take(self, pending: _Pending) -> None:
        for entry, gradient in pending.gradients:
            entry.local.grad = gradient
        self.update()
        for entry, _ in pending.gradients:
            entry.local.grad = None

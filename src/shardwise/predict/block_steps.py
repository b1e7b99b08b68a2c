"""The steps of one block for one micro-batch, and how they are listed.

A step is a part of the computation or one collective. Every axis of the layout is a process group with a stream of its
own. A collective is waited for where it stands, unless it is listed beside something that does not need it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from shardwise.predict.passes import COMPUTE
from shardwise.simulate.spans import SpanCategory
from shardwise.step.inventory import CollectiveKind, OperationPhase
from shardwise.units import Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A part of a block, or one of its collectives."""

    name: str
    category: SpanCategory
    stream: str
    """``compute``, or the axis of a collective."""
    duration_s: Seconds
    after: tuple[int, ...]
    """Positions of the steps that must be done before."""
    slowdown_ratio: float = 1.0
    """Of both, while it and computation run at once; 1 for what is waited for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockCall:
    """One collective inside a block."""

    name: str
    kind: CollectiveKind
    axis: str
    duration_s: Seconds
    slowdown_ratio: float


class StepWriter:
    """Lists steps one after the other, and takes every call of the block once."""

    def __init__(self, calls: Iterable[BlockCall], phase: OperationPhase) -> None:
        self.phase = phase
        self.tail: tuple[int, ...] = ()
        """What the next step comes after."""
        self._calls = list(calls)
        self._steps: list[Step] = []

    def take(self, axis: str, kind: CollectiveKind, *, name: str | None = None) -> BlockCall | None:
        """The first call of a kind that has no place yet."""
        for position, call in enumerate(self._calls):
            if call.axis == axis and call.kind == kind and name in (None, call.name):
                return self._calls.pop(position)
        return None

    def count(self, axis: str, kind: CollectiveKind) -> int:
        """Calls of a kind without a place."""
        return sum(call.axis == axis and call.kind == kind for call in self._calls)

    def work(self, name: str, duration_s: Seconds) -> None:
        """Compute after everything before."""
        self.tail = self.add_work(name, duration_s, self.tail)

    def wait(self, call: BlockCall | None) -> None:
        """Communicate after everything before, and wait for it."""
        if call is not None:
            self.tail = self.add_call(replace(call, slowdown_ratio=1.0), self.tail)

    def beside(self, call: BlockCall | None, name: str, duration_s: Seconds) -> None:
        """Communicate and compute at once, and wait for both."""
        before = self.tail
        started = () if call is None else self.add_call(call, before)
        worked = self.add_work(name, duration_s, before)
        self.tail = (started or before) if worked == before else (*started, *worked)

    def add_work(self, name: str, duration_s: Seconds, after: tuple[int, ...]) -> tuple[int, ...]:
        """List computation; its position, or what it would come after when there is none."""
        if duration_s <= 0:
            return after
        return self._add(
            Step(name=name, category=_component(self.phase), stream=COMPUTE, duration_s=duration_s, after=after)
        )

    def add_call(self, call: BlockCall, after: tuple[int, ...]) -> tuple[int, ...]:
        """List a collective; its position."""
        return self._add(
            Step(
                name=call.name,
                category=call.kind,
                stream=call.axis,
                duration_s=call.duration_s,
                after=after,
                slowdown_ratio=call.slowdown_ratio,
            )
        )

    def finished(self) -> tuple[Step, ...]:
        """All steps; calls without a place are waited for at the end."""
        for call in self._calls:
            self.wait(call)
        self._calls = []
        return tuple(self._steps)

    def _add(self, step: Step) -> tuple[int, ...]:
        self._steps.append(step)
        return (len(self._steps) - 1,)


def in_turn(steps: Sequence[Step]) -> tuple[Step, ...]:
    """The same one after the other, as under a host that waits for each."""
    return tuple(
        replace(step, after=(position - 1,) if position else (), slowdown_ratio=1.0)
        for position, step in enumerate(steps)
    )


def is_chain(steps: Sequence[Step]) -> bool:
    """Whether every step waits for the one before it, so that nothing is hidden."""
    return all(position == 0 or position - 1 in step.after for position, step in enumerate(steps))


def _component(phase: OperationPhase) -> SpanCategory:
    return phase

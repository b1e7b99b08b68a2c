"""Spans: tasks with stream, start and end, from which timelines are drawn."""

from dataclasses import dataclass

from shardwise.ledger import TimeComponent
from shardwise.step.inventory import CollectiveKind
from shardwise.units import Seconds

SpanCategory = TimeComponent | CollectiveKind
"""A time component of the ledger for computation, the kind of collective for communication."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """One task from its start to its end."""

    stream: str
    """Stream that ran it, such as ``stage 0/compute``; the part before the slash is a process of a timeline."""
    name: str
    category: SpanCategory
    start_s: Seconds
    end_s: Seconds
    micro_batch: int | None = None
    chunk: int | None = None
    exposed_s: Seconds = 0.0
    """Seconds by which communication makes the step longer, as the prediction attributes waits and slowdowns to it."""

    @property
    def duration_s(self) -> Seconds:
        """Seconds from start to end."""
        return self.end_s - self.start_s

"""Reads a trace that ``shardwise timeline`` wrote, so that a predicted step is reported like a measured one."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from shardwise.errors import TraceError
from shardwise.measure.rank_trace import MICROSECOND, MOST_ELEMENTS, read_rank_trace
from shardwise.measure.trace_records import CommunicationFacts, RankTrace, Work, is_count, is_moment
from shardwise.measure.trace_text import Event, ReadingNotes, trace_events
from shardwise.step.inventory import CollectiveKind

SCHEMA = "shardwise.timeline/1"
COLLECTIVE_KINDS: Mapping[str, CollectiveKind] = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "all_to_all": "all_to_all",
    "send_recv": "send_recv",
    "broadcast": "broadcast",
}
"""Categories of spans that are communication."""
LAUNCHES = "launches"
"""The stream of the launching CPU, as ``predict/timeline_stage.py`` names it."""
WARNING = "a step that shardwise timeline simulated; nothing of it was measured"


class _Thread(NamedTuple):
    """The thread of the trace on which a span was recorded."""

    rank: int
    number: int


def read_traces(path: Path, *, fallback_rank: int = 0) -> tuple[RankTrace, ...]:
    """The ranks of one file: a profiler's trace holds one rank, a predicted timeline every rank that it draws.

    Args:
        fallback_rank: the rank where neither the file nor its name says one.

    Raises:
        TraceError: it cannot be opened, is no trace, or holds nothing that can be looked at.
    """
    notes = ReadingNotes()
    events = trace_events(path, notes)
    first = next(events, None)
    if first is None or notes.header.get("schema") != SCHEMA:
        return (read_rank_trace(path, fallback_rank=fallback_rank),)
    traces = tuple(_rank_traces(path, chain((first,), events), notes))
    if not traces:
        raise TraceError(
            f"'{path}' is a predicted timeline without a span",
            code="trace-empty",
            fix="write it again with shardwise timeline PLAN --out FILE",
        )
    return traces


def _rank_traces(path: Path, events: Iterable[Event], notes: ReadingNotes) -> Iterator[RankTrace]:
    streams: dict[_Thread, str] = {}
    spans: dict[int, list[tuple[_Thread, Event]]] = {}
    for event in events:
        thread = _Thread(_whole(event.get("pid")), _whole(event.get("tid")))
        if event.get("name") == "thread_name":
            streams[thread] = str(_arguments(event).get("name", ""))
        elif event.get("ph") == "X":
            spans.setdefault(thread.rank, []).append((thread, event))
    stated = notes.header.get("otherData")
    facts = stated if isinstance(stated, dict) else {}
    step_s = facts.get("step_s")
    for rank, own in sorted(spans.items()):
        works = (
            _work(event, thread, streams.get(thread, ""))
            for thread, event in own
            if streams.get(thread) != LAUNCHES  # the CPU's own work
        )
        yield RankTrace(
            path=path,
            rank=rank,
            world_size=_whole(facts.get("num_ranks")) or None,
            device_name=str(facts.get("gpu", "")),
            backend="",
            works=tuple(sorted(works, key=lambda work: (work.start_s, work.end_s))),
            marks=(),
            has_device=True,
            num_events=notes.num_events,
            warnings=(WARNING,),
            step_s=step_s if is_moment(step_s) and step_s > 0 else None,
        )


def _work(event: Event, thread: _Thread, stream: str) -> Work:
    category, arguments = str(event.get("cat", "")), _arguments(event)
    kind = COLLECTIVE_KINDS.get(category)
    start_us, duration_us = _number(event.get("ts")), _number(event.get("dur"))
    axis = stream.partition(" ")[0]
    return Work(
        name=str(event.get("name", "")),
        kind="copy" if category == "offload" else "kernel",
        family="other" if kind is None else "communication",
        stream=thread.number,
        start_s=start_us * MICROSECOND,
        end_s=(start_us + duration_us) * MICROSECOND,
        launch_s=None,
        launch_thread=None,
        is_graph_launch=False,
        communication=None if kind is None else _communication(kind, axis, thread.rank, arguments),
        flop=None,
    )


def _communication(kind: CollectiveKind, axis: str, rank: int, arguments: Mapping[str, object]) -> CommunicationFacts:
    """Facts of a drawn collective. A timeline draws one rank of a group, so the group's name holds that rank alone."""
    size, payload = arguments.get("group_size"), arguments.get("bytes")
    return CommunicationFacts(
        kind=kind,
        payload_bytes=payload if isinstance(payload, int) and 0 <= payload < MOST_ELEMENTS else None,
        group_size=size if is_count(size) else None,
        group_name=f"{axis} of rank {rank}",
        group_description=axis,
        group_ranks=(),
    )


def _arguments(event: Event) -> Mapping[str, object]:
    found = event.get("args")
    return found if isinstance(found, dict) else {}


def _whole(value: object) -> int:
    return value if is_count(value) else 0


def _number(value: object) -> float:
    return float(value) if is_moment(value) and value >= 0 else 0.0

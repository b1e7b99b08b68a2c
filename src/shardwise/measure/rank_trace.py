"""Reads one rank's trace file into records, keeping only what is looked at."""

import json
import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from sys import intern
from typing import NamedTuple

from shardwise.errors import TraceError
from shardwise.measure.kernel_names import collective_kind, kernel_family
from shardwise.measure.operator_flop import SHAPED_OPERATORS, operator_flop
from shardwise.measure.trace_records import CommunicationFacts, Mark, RankTrace, Work, WorkKind, is_count, is_moment
from shardwise.measure.trace_text import Event, ReadingNotes, trace_events
from shardwise.units import Bytes, Flop

DEVICE_CATEGORIES: Mapping[str, WorkKind] = {
    "kernel": "kernel",
    "gpu_memcpy": "copy",
    "gpu_memset": "copy",
    "memcpy": "copy",
    "memset": "copy",
}
LAUNCH_CATEGORIES = ("cuda_runtime", "cuda_driver", "runtime")
RANGE_CATEGORIES = ("user_annotation", "cpu_op")
LIBRARY_RANGE = re.compile(r"^(gloo|nccl|rccl):")
WAITING = re.compile(r"^_c10d_functional::")
"""Operators that ask for a collective or wait for it: their thread computes nothing, whatever encloses them."""
WRAPPER = re.compile(r"^(c10d::|autograd::engine::|record_param_comms$)|Backward\d*$")
"""Operators that hold others, and among them waiting for other ranks."""
MARK = re.compile(
    r"^(ProfilerStep|FSDP::|shardwise::|Optimizer\.|gloo:|nccl:|rccl:|## )|[Bb]ackward|^c10d::|[Pp]ipeline|^DDP"
)
ELEMENT_BYTES = {
    **dict.fromkeys(("double", "long"), 8),
    **dict.fromkeys(("float", "int"), 4),
    **dict.fromkeys(("half", "bfloat16", "short"), 2),
    **dict.fromkeys(("char", "byte", "bool", "int8", "uint8", "float8_e4m3fn", "float8_e5m2"), 1),
}
"""Bytes of an element by the name that torch writes into ``dtype``."""
MICROSECOND = 1e-6
MOST_ELEMENTS = 2**60
UNSTATED = CommunicationFacts(
    kind=None, payload_bytes=None, group_size=None, group_name="", group_description="", group_ranks=()
)
"""What is known of a collective of gloo."""
RANK_IN_NAME = re.compile(r"rank[-_]?(\d{1,9})", re.IGNORECASE)


def read_rank_trace(path: Path, *, fallback_rank: int = 0) -> RankTrace:
    """Read one file.

    Args:
        fallback_rank: the rank where neither the file nor its name says one.

    Raises:
        TraceError: it cannot be opened, is no trace, or holds nothing that can be looked at.
    """
    notes = ReadingNotes()
    gathered = _Gathered()
    for event in trace_events(path, notes):
        gathered.take(event)
    works = tuple(sorted(gathered.works(), key=lambda work: (work.start_s, work.end_s)))
    if not works:
        raise TraceError(
            f"'{path}' holds {notes.num_events:,} events, and none of them is a kernel, a copy or an operator",
            code="trace-empty",
            fix="profile with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA] while steps are running",
        )
    information = notes.header.get("distributedInfo")
    facts = information if isinstance(information, dict) else {}
    rank = facts.get("rank")
    world_size = facts.get("world_size")
    return RankTrace(
        path=path,
        rank=rank if is_count(rank) else _rank_of_name(path, fallback_rank),
        world_size=world_size if is_count(world_size) else None,
        device_name=_device_name(notes.header),
        backend=str(facts.get("backend", "")),
        works=works,
        marks=tuple(sorted(gathered.marks(), key=lambda mark: mark.start_s)),
        has_device=gathered.has_device,
        num_events=notes.num_events,
        warnings=tuple(_warnings(notes, gathered)),
    )


class _Device(NamedTuple):
    """A kernel or copy before its launch is known."""

    name: str
    kind: WorkKind
    stream: int
    ts: float
    dur: float
    correlation: int | None
    external: int | None
    communication: CommunicationFacts | None


class _Range(NamedTuple):
    """An operator or annotation of the host."""

    name: str
    thread: int
    ts: float
    dur: float


class _Launch(NamedTuple):
    """The call that issued work to the device."""

    ts: float
    thread: int
    is_graph: bool


class _Gathered:
    """What is kept while a file is read. Device work waits for its launch, which may come later in the file."""

    def __init__(self) -> None:
        self.num_unusable = 0
        self._device: list[_Device] = []
        self._operators: list[_Range] = []
        self._ranges: list[_Range] = []
        self._launches: dict[int, _Launch] = {}
        self._flop: dict[int, Flop] = {}
        self._origin_us = float("inf")

    @property
    def has_device(self) -> bool:
        return bool(self._device)

    def take(self, event: Event) -> None:
        """Keep what is looked at of one event."""
        if event.get("ph") != "X":
            return
        ts, dur = event.get("ts"), event.get("dur")
        if not is_moment(ts) or not is_moment(dur) or dur < 0:
            self.num_unusable += 1
            return
        category = str(event.get("cat", "")).lower()
        self._origin_us = min(self._origin_us, ts)
        if category in DEVICE_CATEGORIES:
            self._device.append(_device(event, DEVICE_CATEGORIES[category], ts, dur))
        elif category in LAUNCH_CATEGORIES:
            correlation = _argument(event, "correlation")
            if isinstance(correlation, int):
                is_graph = "GraphLaunch" in str(event.get("name", ""))
                self._launches[correlation] = _Launch(ts=ts, thread=_number(event.get("tid")), is_graph=is_graph)
        elif category in RANGE_CATEGORIES:
            self._take_range(event, category, ts, dur)

    def _take_range(self, event: Event, category: str, ts: float, dur: float) -> None:
        name = intern(str(event.get("name", "")))
        found = _Range(name=name, thread=_number(event.get("tid")), ts=ts, dur=dur)
        if MARK.search(name):
            self._ranges.append(found)
        if category == "cpu_op" or LIBRARY_RANGE.match(name):
            self._operators.append(found)
        if name in SHAPED_OPERATORS:
            external = _argument(event, "External id")
            flop = operator_flop(name, _argument(event, "Input Dims"))
            if isinstance(external, int) and flop is not None:
                self._flop[external] = flop

    def marks(self) -> Iterator[Mark]:
        """The ranges that say where the host was."""
        for found in self._ranges:
            start_s, end_s = self._since_origin(found.ts, found.dur)
            yield Mark(name=found.name, thread=found.thread, start_s=start_s, end_s=end_s)

    def works(self) -> Iterator[Work]:
        """Device work; without a device, the host's own."""
        yield from (self._device_work(found) for found in self._device)
        if not self._device:
            yield from (self._host_work(found) for found in _outermost(self._operators))

    def _device_work(self, found: _Device) -> Work:
        launch = None if found.correlation is None else self._launches.get(found.correlation)
        start_s, end_s = self._since_origin(found.ts, found.dur)
        return Work(
            name=found.name,
            kind=found.kind,
            family="other" if found.kind == "copy" else kernel_family(found.name),
            stream=found.stream,
            start_s=start_s,
            end_s=end_s,
            launch_s=None if launch is None else (launch.ts - self._origin_us) * MICROSECOND,
            launch_thread=None if launch is None else launch.thread,
            is_graph_launch=launch is not None and launch.is_graph,
            communication=found.communication,
            flop=None if found.external is None else self._flop.get(found.external),
        )

    def _host_work(self, found: _Range) -> Work:
        start_s, end_s = self._since_origin(found.ts, found.dur)
        family = "communication" if LIBRARY_RANGE.match(found.name) else kernel_family(found.name)
        return Work(
            name=found.name,
            kind="host",
            family=family,
            stream=found.thread,
            start_s=start_s,
            end_s=end_s,
            launch_s=start_s,
            launch_thread=found.thread,
            is_graph_launch=False,
            communication=UNSTATED if family == "communication" else None,
            flop=None,
        )

    def _since_origin(self, ts: float, dur: float) -> tuple[float, float]:
        start_us = ts - self._origin_us
        return start_us * MICROSECOND, (start_us + dur) * MICROSECOND


def _outermost(operators: list[_Range]) -> Iterator[_Range]:
    """Operators that no other one on the same thread encloses, wrappers aside, without the waiting inside them."""
    waits: dict[int, list[_Range]] = defaultdict(list)
    ends: dict[int, float] = {}
    outer: list[_Range] = []
    for found in sorted(operators, key=lambda item: (item.thread, item.ts, -item.dur)):
        if WAITING.search(found.name):
            waits[found.thread].append(found)
        elif not WRAPPER.search(found.name) and found.ts >= ends.get(found.thread, float("-inf")):
            ends[found.thread] = found.ts + found.dur
            outer.append(found)
    for found in outer:
        yield from _between_waits(found, waits[found.thread])


def _between_waits(found: _Range, waits: list[_Range]) -> Iterator[_Range]:
    """The parts of an operator in which its thread does not wait; waits are in order and do not overlap."""
    start, end = found.ts, found.ts + found.dur
    for index in range(bisect_left(waits, start, key=lambda wait: wait.ts), len(waits)):
        wait = waits[index]
        if wait.ts >= end:
            break
        if wait.ts > start:
            yield found._replace(ts=start, dur=wait.ts - start)
        start = max(start, min(end, wait.ts + wait.dur))
    if start < end or not found.dur:
        yield found._replace(ts=start, dur=end - start)


def _device(event: Event, kind: WorkKind, ts: float, dur: float) -> _Device:
    name = intern(str(event.get("name", "")))
    correlation, external = _argument(event, "correlation"), _argument(event, "External id")
    is_communication = kind == "kernel" and kernel_family(name) == "communication"
    return _Device(
        name=name,
        kind=kind,
        stream=_number(_argument(event, "stream") if _argument(event, "stream") is not None else event.get("tid")),
        ts=ts,
        dur=dur,
        correlation=correlation if isinstance(correlation, int) else None,
        external=external if isinstance(external, int) else None,
        communication=_communication(event) if is_communication else None,
    )


def _communication(event: Event) -> CommunicationFacts:
    """What torch has written beside a collective since version 2.2."""
    word = _argument(event, "Collective name")
    size = _argument(event, "Group size")
    return CommunicationFacts(
        kind=collective_kind(word) if isinstance(word, str) else None,
        payload_bytes=_payload_bytes(event),
        group_size=size if is_count(size) else None,
        group_name=str(_argument(event, "Process Group Name") or ""),
        group_description=str(_argument(event, "Process Group Description") or ""),
        group_ranks=_ranks(_argument(event, "Process Group Ranks")),
    )


def _payload_bytes(event: Event) -> Bytes | None:
    element = ELEMENT_BYTES.get(str(_argument(event, "dtype") or "").lower())
    counts = [_argument(event, name) for name in ("In msg nelems", "Out msg nelems")]
    known = [count for count in counts if isinstance(count, int) and 0 <= count < MOST_ELEMENTS]
    return max(known) * element if known and element else None


def _ranks(value: object) -> tuple[int, ...]:
    """A list of ranks, which torch writes as text and shortens with ``...`` when it is long."""
    if isinstance(value, str) and "..." not in value:
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return ()
    return tuple(rank for rank in value if is_count(rank)) if isinstance(value, list) else ()


def _argument(event: Event, name: str) -> object:
    arguments = event.get("args")
    return arguments.get(name) if isinstance(arguments, dict) else None


def _number(value: object) -> int:
    if isinstance(value, int):
        return value
    digits = re.search(r"\d{1,18}", str(value))
    return int(digits.group()) if digits else 0


def _rank_of_name(path: Path, fallback_rank: int) -> int:
    found = RANK_IN_NAME.search(path.name)
    return int(found.group(1)) if found else fallback_rank


def _device_name(header: Event) -> str:
    devices = header.get("deviceProperties")
    first = devices[0] if isinstance(devices, list) and devices else None
    return str(first.get("name", "")) if isinstance(first, dict) else ""


def _warnings(notes: ReadingNotes, gathered: _Gathered) -> Iterator[str]:
    if notes.is_truncated:
        yield f"the file ends in the middle; {notes.num_events:,} events before that were read"
    if notes.num_damaged:
        yield f"{notes.num_damaged:,} damaged events were skipped"
    if gathered.num_unusable:
        yield f"{gathered.num_unusable:,} events have no start or duration and were skipped"
    if not gathered.has_device:
        yield "no device activity: the host's operators and gloo's ranges stand for the work"

"""The allocator's history that PyTorch dumps (``torch.cuda.memory._dump_snapshot``), block by block.

A snapshot is a pickle of plain containers: per device a list of events (``alloc``, ``free_requested``, ``oom`` and
others, each with address, bytes, stream and Python frames), and the segments with the blocks that live at the moment of
the dump. Only such containers are read; a pickle that names any class or function is refused, so that a file from
elsewhere cannot run code.
"""

import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypeAlias

from shardwise.errors import TraceError
from shardwise.units import Bytes

Event: TypeAlias = Mapping[str, object]

PICKLE_MARK = b"\x80"
"""The first byte of every pickle since protocol 2."""
LIVE_STATE = "active_allocated"
RESERVING = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}
"""What an event does to the bytes reserved from the device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """One line of a Python stack."""

    file: str
    function: str
    line_number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """One block from its request to its release, in event numbers of its device."""

    num_bytes: Bytes
    """As requested, before rounding."""
    stream_id: int
    begin: int | None
    """``None`` for a block that was there before the recording began."""
    end: int | None
    """``None`` for a block that was there at the dump."""
    frames: tuple[Frame, ...]
    """Innermost first; empty on a thread without Python, which is how autograd runs kernels of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedRequest:
    """A request that the device had no room for."""

    event_index: int
    num_bytes: Bytes
    free_bytes: Bytes | None
    """On the device then; ``None`` where the file does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceHistory:
    """One device's recording."""

    device_index: int
    num_events: int
    allocations: tuple[Allocation, ...]
    """In the order of their begin, those from before the recording first."""
    peak_reserved_bytes: Bytes
    refused: tuple[RefusedRequest, ...]


class _PlainUnpickler(pickle.Unpickler):
    """Lists, tuples, dictionaries, numbers and strings; nothing that would have to be imported."""

    def find_class(self, module_name: str, global_name: str, /) -> object:
        raise TraceError(
            f"the pickle names {module_name}.{global_name}; a memory snapshot names nothing, so this is none",
            code="memory-snapshot-unreadable",
            fix="give the file that torch.cuda.memory._dump_snapshot(FILE) wrote",
        )


def is_memory_snapshot(path: Path) -> bool:
    """Whether a file is a pickle, by its first byte."""
    try:
        with path.open("rb") as file:
            return file.read(1) == PICKLE_MARK
    except OSError:
        return False


def read_memory_snapshot(path: Path) -> tuple[DeviceHistory, ...]:
    """Every device of which something was recorded or is held.

    Raises:
        TraceError: the file is no snapshot, or nothing was recorded in it.
    """
    content = _unpickled(path)
    traces, segments = content.get("device_traces"), content.get("segments")
    if not isinstance(traces, list) or not isinstance(segments, list):
        raise _unusable(path, "it is a pickle without 'device_traces' and 'segments'")
    histories = []
    for device, events in enumerate(traces):
        own = [segment for segment in segments if segment.get("device") == device]
        if events:
            histories.append(_history(device, events, own))
    if not histories:
        raise _unusable(path, "no allocation was recorded in it")
    return tuple(histories)


def _unpickled(path: Path) -> dict[str, object]:
    try:
        with path.open("rb") as file:
            content = _PlainUnpickler(file).load()
    except OSError as error:
        raise _unusable(path, error.strerror or str(error)) from None
    except (pickle.UnpicklingError, EOFError, ValueError, IndexError, KeyError, AttributeError, TypeError) as error:
        raise _unusable(path, f"the pickle is damaged, cut off or foreign ({error})") from None
    if not isinstance(content, dict):
        raise _unusable(path, "it is a pickle of something else")
    return content


def _unusable(path: Path, reason: str) -> TraceError:
    return TraceError(
        f"'{path}' is no memory snapshot that can be read: {reason}",
        code="memory-snapshot-unreadable",
        fix="call torch.cuda.memory._record_memory_history() before the first step, "
        "and torch.cuda.memory._dump_snapshot(FILE) after the last",
    )


def _history(device: int, events: Sequence[Event], segments: Sequence[Event]) -> DeviceHistory:
    held = _held_at_the_dump(segments)
    recorded, from_before = _paired(events, held)
    return DeviceHistory(
        device_index=device,
        num_events=len(events),
        allocations=(*from_before, *recorded),
        peak_reserved_bytes=_peak_reserved_bytes(events, segments),
        refused=tuple(
            RefusedRequest(event_index=index, num_bytes=_whole(event, "size"), free_bytes=_free_bytes(event))
            for index, event in enumerate(events)
            if event.get("action") == "oom"
        ),
    )


def _held_at_the_dump(segments: Sequence[Event]) -> dict[int, Allocation]:
    """Blocks in use by their address."""
    held: dict[int, Allocation] = {}
    for segment in segments:
        address = _whole(segment, "address")
        for block in _events(segment, "blocks"):
            if block.get("state") == LIVE_STATE:
                held[_whole(block, "address") or address] = Allocation(
                    num_bytes=_whole(block, "requested_size") or _whole(block, "size"),
                    stream_id=_whole(segment, "stream"),
                    begin=None,
                    end=None,
                    frames=_frames(block),
                )
            address += _whole(block, "size")
    return held


def _paired(
    events: Sequence[Event], held: dict[int, Allocation]
) -> tuple[tuple[Allocation, ...], tuple[Allocation, ...]]:
    """Requests joined with their releases, and the blocks that were there before the first event."""
    open_events: dict[int, tuple[int, Event]] = {}
    closed: list[Allocation] = []
    from_before: list[Allocation] = []
    for index, event in enumerate(events):
        action, address = event.get("action"), _whole(event, "addr")
        if action == "alloc":
            open_events[address] = (index, event)
        elif action == "free_requested":
            begun = open_events.pop(address, None)
            block = _allocation(
                event if begun is None else begun[1], begin=None if begun is None else begun[0], end=index
            )
            (from_before if begun is None else closed).append(block)
    closed.extend(_allocation(event, begin=index, end=None) for index, event in open_events.values())
    from_before.extend(block for address, block in held.items() if address not in open_events)
    return tuple(sorted(closed, key=lambda block: block.begin or 0)), tuple(from_before)


def _allocation(event: Event, *, begin: int | None, end: int | None) -> Allocation:
    """A block of which an event tells; a release does not say who asked for it."""
    return Allocation(
        num_bytes=_whole(event, "size"),
        stream_id=_whole(event, "stream"),
        begin=begin,
        end=end,
        frames=() if begin is None else _frames(event),
    )


def _peak_reserved_bytes(events: Sequence[Event], segments: Sequence[Event]) -> Bytes:
    """Largest sum of segments, walking back from what the dump holds."""
    reserved = peak = sum(_whole(segment, "total_size") for segment in segments)
    for event in reversed(events):
        reserved -= RESERVING.get(str(event.get("action")), 0) * _whole(event, "size")
        peak = max(peak, reserved)
    return peak


def _frames(event: Event) -> tuple[Frame, ...]:
    return tuple(
        _frame(str(frame.get("filename", "")), str(frame.get("name", "")), _whole(frame, "line"))
        for frame in _events(event, "frames")
        if str(frame.get("filename", "")).endswith(".py")
    )


@cache
def _frame(file: str, function: str, line: int) -> Frame:
    """The same lines ask for memory again and again: one record for each."""
    return Frame(file=file, function=function, line_number=line)


def _events(event: Event, name: str) -> Iterator[Event]:
    items = event.get(name)
    if isinstance(items, list):
        yield from (item for item in items if isinstance(item, dict))


def _free_bytes(event: Event) -> Bytes | None:
    free = event.get("device_free")
    return free if isinstance(free, int) else None


def _whole(event: Event, name: str) -> int:
    value = event.get(name)
    return value if isinstance(value, int) else 0

"""The allocator's history that PyTorch dumps (``torch.cuda.memory._dump_snapshot``), block by block.

A snapshot is a pickle of plain containers: per device a list of events (``alloc``, ``free_requested``, ``oom`` and
others, each with address, bytes, stream and Python frames), and the segments with the blocks that live at the moment of
the dump. Only such containers are read; a pickle that names any class or function is refused, so that a file from
elsewhere cannot run code.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from shardwise.errors import TraceError
from shardwise.measure.plain_pickle import ForeignPickleError, foreign, plain_value
from shardwise.units import GIB, Bytes

Event: TypeAlias = Mapping[str, object]

PICKLE_MARK = b"\x80"
"""The first byte of every pickle since protocol 2."""
MOST_SNAPSHOT_BYTES = GIB
"""A snapshot of a hundred thousand events has some tens of megabytes."""
MOST_DEVICES = 64
MOST_LINES = 2**31
LIVE_STATE = "active_allocated"
RESERVING = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}
"""Sign of an event's bytes in the memory reserved from the device."""


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
    """Bytes as requested, before rounding."""
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
    """Bytes free on the device when it refused; ``None`` where the file does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceHistory:
    """One device's recording."""

    device_index: int
    num_events: int
    allocations: tuple[Allocation, ...]
    """Allocations in the order in which they begin; those from before the recording come first."""
    peak_reserved_bytes: Bytes
    refused: tuple[RefusedRequest, ...]


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
    try:
        frames = _Frames()
        histories = [
            _history(device, _mappings(events, "events"), _of_device(segments, device), frames)
            for device, events in enumerate(traces[:MOST_DEVICES])
            if events
        ]
    except ForeignPickleError as error:
        raise _unusable(path, error.message) from None
    if not histories:
        raise _unusable(path, "no allocation was recorded in it")
    return tuple(histories)


def _unpickled(path: Path) -> dict[str, object]:
    try:
        if path.stat().st_size > MOST_SNAPSHOT_BYTES:
            raise _unusable(path, f"it has more than {MOST_SNAPSHOT_BYTES // GIB} GiB")
        content = plain_value(path.read_bytes())
    except OSError as error:
        raise _unusable(path, error.strerror or str(error)) from None
    except ForeignPickleError as error:
        raise _unusable(path, error.message) from None
    if not isinstance(content, dict):
        raise _unusable(path, "it is a pickle of something else")
    return content


def _of_device(segments: Sequence[object], device: int) -> Sequence[Event]:
    return [segment for segment in _mappings(segments, "segments") if segment.get("device") == device]


def _mappings(values: object, what: str) -> Sequence[Event]:
    """A list of events, segments, blocks or frames; whole lists may be meant by many names, and each is walked."""
    if not isinstance(values, list) or not all(isinstance(value, dict) for value in values):
        raise foreign(f"its {what} are no list of dictionaries")
    return values


def _unusable(path: Path, reason: str) -> TraceError:
    return foreign(f"'{path}' is no memory snapshot that can be read: {reason}")


def _history(device: int, events: Sequence[Event], segments: Sequence[Event], frames: "_Frames") -> DeviceHistory:
    held = _held_at_the_dump(segments, frames)
    recorded, from_before = _paired(events, held, frames)
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


def _held_at_the_dump(segments: Sequence[Event], frames: "_Frames") -> dict[int, Allocation]:
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
                    frames=frames.of(block),
                )
            address += _whole(block, "size")
    return held


def _paired(
    events: Sequence[Event], held: dict[int, Allocation], frames: "_Frames"
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
            start, request = (None, event) if begun is None else begun
            block = _allocation(request, frames, begin=start, end=index)
            (from_before if begun is None else closed).append(block)
    closed.extend(_allocation(event, frames, begin=index, end=None) for index, event in open_events.values())
    from_before.extend(block for address, block in held.items() if address not in open_events)
    return tuple(sorted(closed, key=lambda block: block.begin or 0)), tuple(from_before)


def _allocation(event: Event, frames: "_Frames", *, begin: int | None, end: int | None) -> Allocation:
    """A block of which an event tells; a release does not say who asked for it."""
    return Allocation(
        num_bytes=_whole(event, "size"),
        stream_id=_whole(event, "stream"),
        begin=begin,
        end=end,
        frames=() if begin is None else frames.of(event),
    )


def _peak_reserved_bytes(events: Sequence[Event], segments: Sequence[Event]) -> Bytes:
    """Largest sum of reserved segments, found by walking back from what the dump holds."""
    reserved = peak = sum(_whole(segment, "total_size") for segment in segments)
    for event in reversed(events):
        reserved -= RESERVING.get(str(event.get("action")), 0) * _whole(event, "size")
        peak = max(peak, reserved)
    return peak


class _Frames:
    """Python's frames of blocks. Blocks that one place asked for share a list of them, which is read once."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Frame, ...]] = {}
        self._same: dict[Frame, Frame] = {}

    def of(self, event: Event) -> tuple[Frame, ...]:
        """Python frames of a block or event."""
        found = event.get("frames")
        if found is None:
            return ()
        if id(found) not in self._known:
            self._known[id(found)] = tuple(
                self._frame(frame) for frame in _mappings(found, "frames") if _is_python(frame)
            )
        return self._known[id(found)]

    def _frame(self, frame: Event) -> Frame:
        line = frame.get("line")
        number = line if isinstance(line, int) and 0 <= line < MOST_LINES else 0
        made = Frame(file=str(frame["filename"]), function=str(frame.get("name", "")), line_number=number)
        return self._same.setdefault(made, made)


def _is_python(frame: Event) -> bool:
    return str(frame.get("filename", "")).endswith(".py")


def _events(event: Event, name: str) -> Sequence[Event]:
    """The dictionaries of a list inside an event; none where it is missing."""
    found = event.get(name)
    return () if found is None else _mappings(found, name)


def _free_bytes(event: Event) -> Bytes | None:
    return None if event.get("device_free") is None else _whole(event, "device_free")


def _whole(event: Event, name: str) -> int:
    """A size, an address or a stream; 0 where it is missing."""
    value = event.get(name, 0)
    if not isinstance(value, int) or not 0 <= value < 2**64:
        raise foreign(f"{name} of an event is {str(value)[:40]!r}, no size or address")
    return value

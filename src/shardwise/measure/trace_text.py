"""The events of a trace file one by one, however large the file, and what was wrong with it.

A trace is JSON in the trace-event format (Google, *Trace Event Format*): an object with ``traceEvents`` among other
keys, as PyTorch's profiler writes it, or a bare array of events, which may end without its bracket. Files of hundreds
of megabytes are decoded event by event, so that only what is kept takes memory.
"""

import json
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, TypeAlias

from shardwise.errors import TraceError

Event: TypeAlias = dict[str, object]

CHUNK_BYTES = 4 * 2**20
"""Read at once: large enough that joining buffers costs nothing, small enough to stay in cache."""
GZIP_MAGIC = b"\x1f\x8b"
GZIP_WINDOW = 31
"""zlib's word for a gzip header and the largest window."""
LONGEST_EVENT_CHARACTERS = 2**22
"""More than any event; what cannot be decoded within it is damaged, not cut off. Blanks between two are fewer too."""
NOT_BLANK = re.compile(r"[^ \t\r\n]")
MOST_EXPANSION, FREE_BYTES = 200, 64 * 2**20
"""How many times longer than the file its content may be, beyond some megabytes: real traces shrink to a twentieth."""
KEPT_KEYS = ("schema", "distributedInfo", "deviceProperties", "otherData")
"""Keys of the outermost object that somebody reads."""


@dataclass(slots=True, kw_only=True)
class ReadingNotes:
    """What was read of one file, and what was not."""

    num_events: int = 0
    num_damaged: int = 0
    """Pieces that are no JSON; reading went on at the next event."""
    is_truncated: bool = False
    """The file ends inside an event, or inside a compressed block."""
    header: Event = field(default_factory=dict)
    """Other keys of the object that are looked at, such as ``distributedInfo``."""


def trace_events(path: Path, notes: ReadingNotes) -> Iterator[Event]:
    """Every event of a file; ``notes`` is filled while they are read.

    Raises:
        TraceError: the file cannot be opened, or is no trace at all.
    """
    try:
        with path.open("rb") as file:
            is_gzip = file.read(2) == GZIP_MAGIC
            file.seek(0)
            chunks = _bounded(_unpacked(file, notes), path) if is_gzip else iter(lambda: file.read(CHUNK_BYTES), b"")
            yield from _Reader(chunks, path=path, notes=notes).events()
    except OSError as error:
        raise TraceError(
            f"cannot read '{path}': {error.strerror or error}",
            code="trace-unreadable",
            fix="give the path of a trace that torch.profiler exported (.json or .json.gz)",
        ) from None


def _unpacked(file: BinaryIO, notes: ReadingNotes) -> Iterator[bytes]:
    """The content of a gzip file as far as it is whole; ``gzip.open`` would drop the last good block of a cut one."""
    unpack = zlib.decompressobj(wbits=GZIP_WINDOW)
    while packed := unpack.unconsumed_tail or unpack.unused_data or file.read(CHUNK_BYTES):
        if unpack.eof:
            unpack = zlib.decompressobj(wbits=GZIP_WINDOW)
        try:
            yield unpack.decompress(packed, CHUNK_BYTES)
        except zlib.error:
            notes.is_truncated = True
            return
    notes.is_truncated |= not unpack.eof


def _bounded(chunks: Iterator[bytes], path: Path) -> Iterator[bytes]:
    """What is unpacked, as long as it is not far more than a trace of this size can hold."""
    most_bytes = max(FREE_BYTES, MOST_EXPANSION * path.stat().st_size)
    num_bytes = 0
    for chunk in chunks:
        num_bytes += len(chunk)
        if num_bytes > most_bytes:
            raise TraceError(
                f"'{path}' unpacks to more than {most_bytes:,} bytes, {MOST_EXPANSION} times its size",
                code="trace-foreign",
                fix="unpack it (gunzip) and see what it holds: traces shrink to a twentieth",
            )
        yield chunk


class _Reader:
    """A window of text over the file, and one value after the other out of it."""

    def __init__(self, chunks: Iterator[bytes], *, path: Path, notes: ReadingNotes) -> None:
        self._chunks = chunks
        self._path = path
        self._notes = notes
        self._decode = json.JSONDecoder(strict=False).raw_decode
        self._text = ""
        self._at = 0
        self._tail = b""
        self._is_done = False

    def events(self) -> Iterator[Event]:
        opening = self._next_character()
        if opening == "[":
            self._at += 1
            yield from self._array()
        elif opening == "{":
            self._at += 1
            yield from self._object()
        else:
            raise self._no_trace("it does not begin like JSON")

    def _object(self) -> Iterator[Event]:
        """The keys of the outermost object; the events are streamed, the others are kept."""
        has_events = False
        while self._next_character() == '"':
            key = self._value()
            if not isinstance(key, str) or self._next_character() != ":":
                break
            self._at += 1
            if key == "traceEvents" and self._next_character() == "[":
                has_events = True
                self._at += 1
                yield from self._array()
            else:
                value = self._value()
                if value is not None and key in KEPT_KEYS:
                    self._notes.header[key] = value
            if self._next_character() == ",":
                self._at += 1
        if not has_events:
            raise self._no_trace("it has no traceEvents")
        self._notes.is_truncated |= self._next_character() != "}"

    def _array(self) -> Iterator[Event]:
        while (character := self._next_character()) not in ("]", ""):
            if character == ",":
                self._at += 1
                continue
            event = self._value()
            if isinstance(event, dict):
                self._notes.num_events += 1
                yield event
        self._at += 1

    def _value(self) -> object:
        """The value that begins here; ``None`` when it is damaged or cut off, and the reader stands behind it."""
        self._next_character()
        while True:
            try:
                value, end = self._decode(self._text, self._at)
            except RecursionError:
                self._skip_damage()
                return None
            except ValueError:  # no JSON, or a number of thousands of digits
                if len(self._text) - self._at < LONGEST_EVENT_CHARACTERS and self._fill():
                    continue
                self._skip_damage()
                return None
            if end == len(self._text) and self._fill():
                continue  # a number may go on in what was just read
            self._at = end
            return value

    def _skip_damage(self) -> None:
        """Go on at the next event: a brace at the beginning of a line or right behind a comma."""
        ends = [self._text.find(mark, self._at + 1) for mark in ("\n  {", "},{", "}, {", "},\n{")]
        found = [end for end in ends if end >= 0]
        if not found:
            self._notes.is_truncated = True
            self._at = len(self._text)
            return
        self._notes.num_damaged += 1
        self._at = self._text.index("{", min(found) + 1)

    def _next_character(self) -> str:
        """The next character that is not blank; empty at the end of the file."""
        num_blank = 0
        while (found := NOT_BLANK.search(self._text, self._at)) is None:
            num_blank += len(self._text) - self._at
            self._at = len(self._text)
            if num_blank > LONGEST_EVENT_CHARACTERS:
                raise self._no_trace(f"it has more than {LONGEST_EVENT_CHARACTERS:,} blanks one after the other")
            if not self._fill():
                return ""
        self._at = found.start()
        return self._text[self._at]

    def _fill(self) -> bool:
        """Read on; whether there was more."""
        if self._is_done:
            return False
        chunk = next(self._chunks, None)
        self._is_done = chunk is None
        joined = self._tail + (chunk or b"")
        whole = len(joined) if self._is_done else _whole_characters(joined)
        self._tail = joined[whole:]
        self._text = self._text[self._at :] + joined[:whole].decode("utf-8", errors="replace")
        self._at = 0
        return not self._is_done

    def _no_trace(self, reason: str) -> TraceError:
        return TraceError(
            f"'{self._path}' is no trace: {reason}",
            code="trace-foreign",
            fix="give a file that torch.profiler's export_chrome_trace or tensorboard_trace_handler wrote",
        )


def _whole_characters(data: bytes) -> int:
    """Bytes up to the last complete UTF-8 character."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte < 0x80:
            return len(data)
        if byte >= 0xC0:
            length = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return len(data) if back >= length else len(data) - back
    return len(data)

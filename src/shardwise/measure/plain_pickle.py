"""Reads a pickle of plain values, and nothing that a pickle can do besides.

A pickle is a program for a small machine. Python's own reader of it reserves whatever a file claims, and the hash of a
tuple in a million tuples ends the process; here only the instructions are known that build lists, tuples, dictionaries,
numbers and text, each counts, and a key is a number or a text.

Source: Python's ``pickletools``, protocols 2 to 5.
"""

import struct
from collections.abc import Callable
from typing import TypeAlias

from shardwise.errors import TraceError

__all__ = ["MOST_VALUES", "ForeignPickleError", "foreign", "plain_value"]

MOST_VALUES = 50_000_000
"""Instructions that are followed, in about half a minute: an event of a snapshot takes some thirty."""
STOP, MARK = ord("."), object()
LENGTHS = {1: "<B", 2: "<H", 4: "<I", 8: "<Q"}


class ForeignPickleError(TraceError):
    """The bytes are no pickle of plain values; the message says what they are."""


def foreign(reason: str) -> ForeignPickleError:
    """What to raise where a pickle holds something else than a memory snapshot."""
    return ForeignPickleError(
        reason,
        code="memory-snapshot-unreadable",
        fix="call torch.cuda.memory._record_memory_history() before the first step, "
        "and torch.cuda.memory._dump_snapshot(FILE) after the last",
    )


class _Machine:
    """The stack and the memory of a pickle, while its instructions are followed."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0
        self.stack: list[object] = []
        self.memory: dict[int, object] = {}

    def run(self) -> object:
        data, num_left = self.data, MOST_VALUES
        while True:
            code = data[self.at]
            self.at += 1
            if code == STOP:
                return self.stack[-1]
            num_left -= 1
            if num_left < 0:
                raise foreign(f"it has more than {MOST_VALUES:,} instructions")
            step = STEPS.get(code)
            if step is None:
                raise foreign(self.refusal(code))
            step(self)

    def refusal(self, code: int) -> str:
        """What an instruction that is not followed wants."""
        if code == ord("c"):
            module, name = self.data[self.at : self.at + 400].split(b"\n")[:2]
            return f"the pickle names {module.decode()}.{name.decode()}"
        if code == 0x93:
            return f"the pickle names {self.stack[-2]}.{self.stack[-1]}"
        return f"instruction {code:#04x} makes no plain value"

    def take(self, size: int) -> bytes:
        """The next bytes, never more than there are."""
        begin, self.at = self.at, self.at + size
        if self.at > len(self.data):
            raise foreign(f"it claims {size:,} bytes and has {len(self.data) - begin:,} more")
        return self.data[begin : self.at]

    def number(self, size: int) -> int:
        found: int = struct.unpack(LENGTHS[size], self.take(size))[0]
        return found

    def since_mark(self) -> list[object]:
        """What stands above the last mark, which goes."""
        stack = self.stack
        mark = len(stack) - 1
        while stack[mark] is not MARK:
            mark -= 1
            if mark < 0:
                raise foreign("it closes what it did not open")
        found = stack[mark + 1 :]
        del stack[mark:]
        return found


Step: TypeAlias = Callable[[_Machine], None]


def _pushes(value: object) -> Step:
    return lambda machine: machine.stack.append(value)


def _skips(size: int) -> Step:
    def step(machine: _Machine) -> None:
        machine.take(size)

    return step


def _whole(size: int, *, is_signed: bool = False) -> Step:
    return lambda machine: machine.stack.append(int.from_bytes(machine.take(size), "little", signed=is_signed))


def _long(size: int) -> Step:
    return lambda machine: machine.stack.append(
        int.from_bytes(machine.take(machine.number(size)), "little", signed=True)
    )


def _text(size: int) -> Step:
    return lambda machine: machine.stack.append(
        machine.take(machine.number(size)).decode("utf-8", errors="surrogatepass")
    )


def _raw(size: int) -> Step:
    return lambda machine: machine.stack.append(machine.take(machine.number(size)))


def _float(machine: _Machine) -> None:
    machine.stack.append(struct.unpack(">d", machine.take(8))[0])


def _tuple(size: int) -> Step:
    def step(machine: _Machine) -> None:
        machine.stack[-size:] = [tuple(machine.stack[-size:])]

    return step


def _tuple_since_mark(machine: _Machine) -> None:
    machine.stack.append(tuple(machine.since_mark()))


def _list_since_mark(machine: _Machine) -> None:
    machine.stack.append(machine.since_mark())


def _append(machine: _Machine) -> None:
    value = machine.stack.pop()
    _last_list(machine).append(value)


def _appends(machine: _Machine) -> None:
    values = machine.since_mark()
    _last_list(machine).extend(values)


def _last_list(machine: _Machine) -> list[object]:
    found = machine.stack[-1]
    if type(found) is not list:
        raise foreign("it appends to what is no list")
    return found


def _set_item(machine: _Machine) -> None:
    value, key = machine.stack.pop(), machine.stack.pop()
    _put(machine, key, value)


def _set_items(machine: _Machine) -> None:
    items = machine.since_mark()
    for index in range(0, len(items) - 1, 2):
        _put(machine, items[index], items[index + 1])


def _dict_since_mark(machine: _Machine) -> None:
    items = machine.since_mark()
    machine.stack.append({})
    for index in range(0, len(items) - 1, 2):
        _put(machine, items[index], items[index + 1])


def _put(machine: _Machine, key: object, value: object) -> None:
    found = machine.stack[-1]
    if type(found) is not dict or type(key) not in (str, int):
        raise foreign("it has a dictionary whose keys are neither text nor numbers")
    found[key] = value


def _memorise(machine: _Machine) -> None:
    machine.memory[len(machine.memory)] = machine.stack[-1]


def _put_memory(size: int) -> Step:
    def step(machine: _Machine) -> None:
        machine.memory[machine.number(size)] = machine.stack[-1]

    return step


def _get_memory(size: int) -> Step:
    return lambda machine: machine.stack.append(machine.memory[machine.number(size)])


def _pop(machine: _Machine) -> None:
    machine.stack.pop()


def _pop_mark(machine: _Machine) -> None:
    machine.since_mark()


STEPS: dict[int, Step] = {
    0x80: _skips(1),  # PROTO
    0x95: _skips(8),  # FRAME: how many bytes to read at once, and all are here
    ord("("): _pushes(MARK),
    ord("0"): _pop,
    ord("1"): _pop_mark,
    ord("N"): _pushes(None),
    0x88: _pushes(True),
    0x89: _pushes(False),
    ord("K"): _whole(1),
    ord("M"): _whole(2),
    ord("J"): _whole(4, is_signed=True),
    0x8A: _long(1),
    0x8B: _long(4),
    ord("G"): _float,
    0x8C: _text(1),
    ord("X"): _text(4),
    0x8D: _text(8),
    ord("C"): _raw(1),
    ord("B"): _raw(4),
    0x8E: _raw(8),
    ord("U"): _raw(1),
    ord("T"): _raw(4),
    ord("]"): lambda machine: machine.stack.append([]),
    ord("}"): lambda machine: machine.stack.append({}),
    ord(")"): _pushes(()),
    0x85: _tuple(1),
    0x86: _tuple(2),
    0x87: _tuple(3),
    ord("t"): _tuple_since_mark,
    ord("l"): _list_since_mark,
    ord("d"): _dict_since_mark,
    ord("a"): _append,
    ord("e"): _appends,
    ord("s"): _set_item,
    ord("u"): _set_items,
    0x94: _memorise,
    ord("q"): _put_memory(1),
    ord("r"): _put_memory(4),
    ord("h"): _get_memory(1),
    ord("j"): _get_memory(4),
}


def plain_value(data: bytes) -> object:
    """The value of a pickle.

    Raises:
        ForeignPickleError: it is damaged, cut off, or wants what is no plain value.
    """
    try:
        return _Machine(data).run()
    except (IndexError, KeyError, ValueError, struct.error, MemoryError, RecursionError) as error:
        raise foreign(f"the pickle is damaged, cut off or foreign ({error!r:.80})") from None

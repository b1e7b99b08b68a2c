"""Reads a pickle of plain values, and nothing that a pickle can do besides.

A pickle is a program for a small machine. Python's own reader of it reserves whatever a file claims, and the hash of a
tuple in a million tuples ends the process; here ``pickletools`` decodes the instructions, only those are followed that
build lists, tuples, dictionaries, numbers and text, each counts, and a key is a number or a text.
"""

import pickletools
from collections.abc import Callable
from typing import TypeAlias

from shardwise.errors import TraceError

__all__ = ["MOST_VALUES", "ForeignPickleError", "foreign", "plain_value"]

MOST_VALUES = 50_000_000
"""Instructions that are followed, in about half a minute: an event of a snapshot takes some thirty."""
MARK = object()
Stack: TypeAlias = list[object]
Step: TypeAlias = Callable[[Stack], object]


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


def plain_value(data: bytes) -> object:
    """The value of a pickle.

    Raises:
        ForeignPickleError: it is damaged, cut off, or wants what is no plain value.
    """
    try:
        return _followed(data)
    except (IndexError, KeyError, ValueError, MemoryError, RecursionError) as error:
        raise foreign(f"the pickle is damaged, cut off or foreign ({error!r:.120})") from None


def _followed(data: bytes) -> object:
    stack: Stack = []
    memory: dict[object, object] = {}
    for count, (code, argument, _) in enumerate(pickletools.genops(data), start=1):
        if count > MOST_VALUES:
            raise foreign(f"it has more than {MOST_VALUES:,} instructions")
        name = code.name
        if name in VALUES:
            stack.append(argument)
        elif name in MEMORISES:
            memory[len(memory) if argument is None else argument] = stack[-1]
        elif name in REMEMBERS:
            stack.append(memory[argument])
        elif name in STEPS:
            STEPS[name](stack)
        elif name not in SAY_NOTHING:
            raise foreign(_refusal(name, argument, stack))
    return stack[-1]


def _refusal(name: str, argument: object, stack: Stack) -> str:
    """What an instruction that is not followed wants."""
    if name == "GLOBAL":
        return f"the pickle names {str(argument)[:400].replace(' ', '.')}"
    if name == "STACK_GLOBAL":
        return f"the pickle names {stack[-2]}.{stack[-1]}"
    return f"instruction {name} makes no plain value"


def _since_mark(stack: Stack) -> list[object]:
    """What stands above the last mark, which goes."""
    mark = len(stack) - 1
    while stack[mark] is not MARK:
        mark -= 1
        if mark < 0:
            raise foreign("it closes what it did not open")
    found = stack[mark + 1 :]
    del stack[mark:]
    return found


def _tuple(size: int) -> Step:
    def step(stack: Stack) -> None:
        stack[-size:] = [tuple(stack[-size:])]

    return step


def _append_all(stack: Stack, values: list[object]) -> None:
    found = stack[-1]
    if type(found) is not list:
        raise foreign("it appends to what is no list")
    found.extend(values)


def _put_all(stack: Stack, items: list[object]) -> None:
    found = stack[-1]
    for key, value in zip(items[::2], items[1::2], strict=False):
        if type(found) is not dict or type(key) not in (str, int):
            raise foreign("it has a dictionary whose keys are neither text nor numbers")
        found[key] = value


def _dict_since_mark(stack: Stack) -> None:
    items = _since_mark(stack)
    stack.append({})
    _put_all(stack, items)


def _taken(stack: Stack, size: int) -> list[object]:
    """The last values of the stack, which go."""
    found = stack[-size:]
    del stack[-size:]
    return found


VALUES = frozenset(
    (
        *("BININT", "BININT1", "BININT2", "LONG1", "LONG4", "BINFLOAT", "SHORT_BINSTRING", "BINSTRING"),
        *("SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", "SHORT_BINBYTES", "BINBYTES", "BINBYTES8"),
    )
)
"""Instructions whose argument is the value."""
MEMORISES = frozenset(("MEMOIZE", "BINPUT", "LONG_BINPUT"))
REMEMBERS = frozenset(("BINGET", "LONG_BINGET"))
SAY_NOTHING = frozenset(("PROTO", "FRAME", "STOP"))
STEPS: dict[str, Step] = {
    "MARK": lambda stack: stack.append(MARK),
    "POP": lambda stack: stack.pop(),
    "POP_MARK": _since_mark,
    "NONE": lambda stack: stack.append(None),
    "NEWTRUE": lambda stack: stack.append(True),
    "NEWFALSE": lambda stack: stack.append(False),
    "EMPTY_LIST": lambda stack: stack.append([]),
    "EMPTY_DICT": lambda stack: stack.append({}),
    "EMPTY_TUPLE": lambda stack: stack.append(()),
    "TUPLE1": _tuple(1),
    "TUPLE2": _tuple(2),
    "TUPLE3": _tuple(3),
    "TUPLE": lambda stack: stack.append(tuple(_since_mark(stack))),
    "LIST": lambda stack: stack.append(_since_mark(stack)),
    "DICT": _dict_since_mark,
    "APPEND": lambda stack: _append_all(stack, _taken(stack, 1)),
    "APPENDS": lambda stack: _append_all(stack, _since_mark(stack)),
    "SETITEM": lambda stack: _put_all(stack, _taken(stack, 2)),
    "SETITEMS": lambda stack: _put_all(stack, _since_mark(stack)),
}
"""Instructions that build values out of others."""

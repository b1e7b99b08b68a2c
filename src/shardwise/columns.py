"""Arithmetic that reads the same for the numbers of one plan and for the columns of many plans.

A search asks about thousands of plans at once: it puts a NumPy column where a plan has a number, and asks the functions
that are written for one plan. Those that it asks use ``&``, ``|`` and :func:`negated` in place of ``and``, ``or`` and
``not``, and the functions below in place of ``max``, ``min``, ``round`` and conditions on a number. Nothing can be
forgotten in silence: NumPy refuses to take a column for a condition. Annotations are those of one plan.

``either`` is NumPy's ``where``, ``given`` is ``where`` with 0 for the rest, ``most`` and ``least`` are ``maximum`` and
``minimum``, ``whole`` is ``floor``, ``rounded`` is ``round``; ``settled`` makes one ``bool`` of a column of equal ones.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import ParamSpec, Protocol, TypeVar

Name = TypeVar("Name", bound=str)
Number = TypeVar("Number", int, float)
Parameters = ParamSpec("Parameters")
Found = TypeVar("Found")


class Each(Protocol):
    """Asks a function that is written for the numbers of one plan alone about numbers or about columns."""

    def __call__(
        self, function: Callable[Parameters, Found], *args: Parameters.args, **kwargs: Parameters.kwargs
    ) -> Found:
        """Call the function, once for all rows that ask the same."""
        ...


def for_one_plan(function: Callable[Parameters, Found], *args: Parameters.args, **kwargs: Parameters.kwargs) -> Found:
    """The function of plain numbers, as :class:`Each` has it."""
    return function(*args, **kwargs)


def negated(condition: bool) -> bool:
    """Whether a condition does not hold."""
    return condition ^ True


def settled(condition: bool) -> bool:
    """A condition as one word where it holds for all rows, or for none."""
    if isinstance(condition, bool):
        return condition
    return bool(condition.any()) if condition.all() == condition.any() else condition


def either(condition: bool, value: Number, other: Number) -> Number:
    """One value where a condition holds, the other where it does not."""
    if isinstance(condition, bool):
        return value if condition else other
    return condition.__array_namespace__().where(condition, value, other)


def given(condition: bool, value: Number) -> Number:
    """A number where a condition holds, and 0 where it does not."""
    if isinstance(condition, bool):
        return value if condition else 0
    return value * condition


def most(value: Number, other: Number) -> Number:
    """The larger of two numbers."""
    return either(value > other, value, other)


def least(value: Number, other: Number) -> Number:
    """The smaller of two numbers."""
    return either(value < other, value, other)


def largest(values: Iterable[int]) -> int:
    """The largest of some numbers that are not negative; 0 of none."""
    found = 0
    for value in values:
        found = most(found, value)
    return found


def rounded(value: float) -> int:
    """The nearest whole number, the even one of two."""
    return round(value) if isinstance(value, (int, float)) else value.round()


def whole(value: float) -> int:
    """The whole part of a number that is not negative."""
    return int(value) if isinstance(value, (int, float)) else value // 1


def is_among(word: str, names: Iterable[str]) -> bool:
    """Whether a word is one of some names."""
    found = False
    for name in names:
        found = found | (word == name)
    return found


def of_word(word: Name, values: Mapping[Name, Number]) -> Number:
    """The value that a table has for a word.

    >>> of_word("full", {"none": 4, "full": 1})
    1
    """
    return sum((word == name) * value for name, value in values.items())

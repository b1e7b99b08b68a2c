"""What a rule says about a plan: the offending numbers, and the nearest plan that does not break it."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

Severity = Literal["error", "warning"]
Value: TypeAlias = int | float | str | bool | tuple[int, ...] | tuple[str, ...] | None
Changes: TypeAlias = tuple[tuple[str, Value], ...]
"""Field names of :class:`Layout`, :class:`Recipe` or :class:`Plan` with the value each is to take."""


def change(**values: Value) -> Changes:
    """The fields named, with the value each is to take.

    >>> change(pp=1, vpp=1)
    (('pp', 1), ('vpp', 1))
    """
    return tuple(values.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """One broken rule."""

    rule: str
    """The rule's name and the error code: a heading of ``docs/errors.md``."""
    message: str
    """One sentence with the numbers that break the rule."""
    fix: str
    """One thing to type next, such as ``set tp=4 and dp_shard=16``."""
    severity: Severity
    """An error cannot run as written; a warning runs, with a consequence or a setting worth knowing."""
    neighbour: Changes
    """The fix as data: changes to the plan after which the rule holds."""

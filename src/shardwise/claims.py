"""The one record of a claim that was checked: what a text says, what came out, and the verdict."""

from dataclasses import dataclass
from typing import Literal

Cell = str | int | float | None
"""A number or a text; ``None`` is an empty cell of a table."""
Unit = Literal[
    "", "count", "bytes", "decimal_bytes", "s", "time_units", "fraction", "ratio", "flop", "bytes_per_s", "number"
]
"""How a number is written: ``bytes`` in powers of two, ``decimal_bytes`` in powers of ten, ``number`` as it is, up to
6 significant digits, and ``""`` for texts. ``time_units`` are steps of a simulation without a clock."""
Verdict = Literal["right", "loose", "wrong", "unclear"]
"""``loose``: true under a condition that was not said, or with a number that is only about right; ``unclear``: what
came out allows no verdict."""
RIGHT_WITHIN, LOOSE_WITHIN = 0.1, 0.5
"""Shares of a stated number within which it counts as right, and as loosely right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A figure or sentence of a text, beside what was simulated, predicted or measured."""

    says: str
    """The claim in our words."""
    source: str
    said: Cell
    computed: Cell
    unit: Unit = ""
    verdict: Verdict
    note: str = ""
    """Why the claim is loose or wrong, and under which condition it would hold."""


def near(said: float, found: float) -> Verdict:
    """How near a number comes to what was said of it.

    >>> near(2.0, 1.9), near(2.0, 1.2), near(2.0, 0.5)
    ('right', 'loose', 'wrong')
    """
    off = abs(found - said) / abs(said) if said else float(found != said)
    return "right" if off <= RIGHT_WITHIN else "loose" if off <= LOOSE_WITHIN else "wrong"


def at_most(said: float, found: float) -> Verdict:
    """The verdict on a number that was stated as an upper end.

    >>> at_most(0.3, 0.31), at_most(0.3, 0.4), at_most(0.3, 0.6)
    ('right', 'loose', 'wrong')
    """
    return "right" if found <= said * (1 + RIGHT_WITHIN) else near(said, found)


def divides(said: float, found: float) -> Verdict:
    """The verdict on a stated factor by which something is divided, where 1 divides nothing.

    >>> divides(2.0, 2.5), divides(2.0, 1.9), divides(2.0, 1.6), divides(2.0, 1.0)
    ('right', 'right', 'loose', 'wrong')
    """
    if found >= said * (1 - RIGHT_WITHIN):
        return "right"
    return near(said - 1, found - 1) if said > 1 else "wrong"

"""The range of a number that an option takes, as argparse reads it and as pages, schemas and recipes say it."""

import argparse
import math
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["MANY_STEPS", "NumberRange", "add_number"]

MANY_STEPS = 1_000_000_000_000
"""No run has so many steps; below it nothing that is computed from a number of steps loses precision."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberRange:
    """The numbers an option takes, both ends included; no end is open to infinity, and nan is in no range."""

    min_value: float
    max_value: float = math.inf
    is_whole: bool = True

    @property
    def words(self) -> str:
        """The range as a sentence says it.

        >>> NumberRange(min_value=1, max_value=10_000_000, is_whole=False).words
        'a number from 1 to 10,000,000'
        >>> NumberRange(min_value=0, is_whole=False).words
        'a finite number of at least 0'
        """
        kind = "whole number" if self.is_whole else "number"
        if math.isinf(self.max_value):
            return f"a finite {kind} of at least {self.min_value:,}"
        return f"a {kind} from {self.min_value:,} to {self.max_value:,}"

    def read(self, text: str) -> float:
        """The number in ``text``; argparse makes a usage error of one outside."""
        try:
            number = int(text) if self.is_whole else float(text)
        except ValueError:
            number = math.nan
        if not math.isfinite(number) or not self.min_value <= number <= self.max_value:
            raise argparse.ArgumentTypeError(f"'{text[:40]}' is not {self.words}")
        return number


def add_number(
    group: "argparse._ArgumentGroup",
    numbers: Mapping[str, NumberRange],
    option: str,
    *,
    default: float | None,
    metavar: str,
    text: str,
) -> None:
    """The option of a number, which ``numbers`` has the range of."""
    group.add_argument(option, type=numbers[option].read, default=default, metavar=metavar, help=text)

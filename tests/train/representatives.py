"""Which cases of a table ``make test`` looks at, and which are left to ``make runs``."""

from collections.abc import Iterable

import pytest


def representatives(cases: Iterable[str], kept: tuple[str, ...]) -> list:
    """The names of all cases: those kept stand for one kind each, the others combine or vary kinds that are kept."""
    names = list(cases)
    assert {*kept} <= {*names}, f"no case is named {sorted({*kept} - {*names})}"
    return [name if name in kept else pytest.param(name, marks=pytest.mark.runs) for name in names]

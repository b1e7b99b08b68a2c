"""Fields that earlier versions wrote into plans, jobs and checkpoints, and that nothing reads any more."""

import sys
from collections.abc import Mapping
from functools import cache
from typing import Any

__all__ = ["without_retired"]

RETIRED = {
    ("layout", "late_updates"): "the optimizer finishes its step before the next forward pass begins",
}
"""A sentence for each field, by its section and name: how a run behaves now that the field is not read."""


def without_retired(section: str, given: Mapping[Any, Any]) -> dict[Any, Any]:
    """The fields of a section that are still read; each other one that has a value is named on standard error."""
    for name, value in given.items():
        if (section, name) in RETIRED and value is not None:
            _say_once(section, name)
    return {name: value for name, value in given.items() if (section, name) not in RETIRED}


@cache
def _say_once(section: str, name: str) -> None:
    """One process may read a field a thousand times, as from a file of plans."""
    sys.stderr.write(f"warning: {section}.{name} is not used any more: {RETIRED[section, name]}\n")

"""Public numeric fields say their unit, or are on the list of pure numbers."""

import dataclasses
import types
import typing
from types import ModuleType

import pytest

from habits.pure_numbers import PURE_NUMBERS
from habits.source_tree import imported_modules

UNIT_SUFFIXES = (
    "_bytes",
    "_s",
    "_us",
    "_flop",
    "_flop_per_s",
    "_bytes_per_s",
    "_bytes_per_param",
    "_tokens",
    "tokens",
    "tokens_per_s",
    "tokens_per_s_per_gpu",
    "_usd",
    "usd",
    "_usd_per_hour",
    "usd_per_gpu_hour",
    "_fraction",
    "_ratio",
    "_hours",
    "_hours_per_failure",
    "days",
    "_mwh",
    "_w",
    "_mhz",
    "bytes_per_node",
    "flop_per_step",
    "params",
    "_per_day",
)
COUNT_PREFIXES = ("num_", "is_", "has_", "max_", "min_")


def is_numeric(hint: object) -> bool:
    """Whether a field holds a number or may hold one; booleans are claims, not numbers."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return any(is_numeric(part) for part in typing.get_args(hint))
    return hint in (int, float)


def unitless_fields(module: ModuleType) -> list[str]:
    """Numeric fields of the module's own records without a unit."""
    records = [
        value
        for name, value in vars(module).items()
        if dataclasses.is_dataclass(value) and not name.startswith("_") and value.__module__ == module.__name__
    ]
    found = []
    for record in records:
        hints = typing.get_type_hints(record)
        for field in dataclasses.fields(record):
            is_named = field.name.endswith(UNIT_SUFFIXES) or field.name.startswith(COUNT_PREFIXES)
            if is_numeric(hints[field.name]) and not is_named and field.name not in PURE_NUMBERS:
                found.append(f"{record.__name__}.{field.name}")
    return found


@pytest.mark.parametrize("module", imported_modules(), ids=lambda module: module.__name__)
def test_public_numbers_carry_a_unit(module):
    assert unitless_fields(module) == []


def test_a_number_without_unit_is_found():
    @dataclasses.dataclass
    class Link:
        bandwidth: float
        latency_s: float
        is_shared: bool
        size: int | None

    module = types.ModuleType("sample")
    Link.__module__ = "sample"
    module.Link = Link
    assert unitless_fields(module) == ["Link.bandwidth", "Link.size"]

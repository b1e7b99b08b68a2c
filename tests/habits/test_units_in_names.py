"""Public numeric fields say their unit, or are on the list of pure numbers."""

import ast
import dataclasses
import importlib
import inspect
import sys
import types
import typing
from functools import lru_cache
from types import ModuleType

import pytest

from habits.pure_numbers import INDEX_RECORDS, PURE_FIELDS, PURE_NUMBERS
from habits.source_tree import imported_modules

UNITS = (
    "bytes",
    "bytes_per_node",
    "bytes_per_param",
    "bytes_per_s",
    "days",
    "flop",
    "flop_per_s",
    "flop_per_step",
    "flop_per_token",
    "fraction",
    "hours",
    "mhz",
    "mwh",
    "params",
    "per_day",
    "ratio",
    "s",
    "tokens",
    "tokens_per_s",
    "tokens_per_s_per_gpu",
    "us",
    "usd",
    "usd_per_gpu_hour",
    "usd_per_hour",
    "w",
)
COUNT_PREFIXES = ("num_", "max_", "min_")
UNIT_OF_A_RECORD = ("Bytes ", "Elements ")
"""A record whose docstring begins with its unit needs none in its fields."""


def says_its_unit(name: str) -> bool:
    """Whether a name ends in a unit, or is one, or counts something."""
    return name in UNITS or name.endswith(tuple(f"_{unit}" for unit in UNITS)) or name.startswith(COUNT_PREFIXES)


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
        if isinstance(value, type)
        and dataclasses.is_dataclass(value)
        and not name.startswith("_")
        and value.__module__ == module.__name__
    ]
    return [fault for record in records for fault in _unitless_fields_of(record)]


@lru_cache
def _names_of_types(name):
    """What the module of this name imports for type checkers alone; nothing where it has no file."""
    module = sys.modules.get(name)
    if module is None:
        return {}
    blocks = [
        node
        for node in ast.parse(inspect.getsource(module)).body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    ]
    imports = [line for block in blocks for line in block.body if isinstance(line, ast.ImportFrom) and line.module]
    return {
        name.asname or name.name: getattr(importlib.import_module(line.module), name.name)
        for line in imports
        for name in line.names
    }


def _unitless_fields_of(record: type) -> list[str]:
    if record.__name__ in INDEX_RECORDS or (record.__doc__ or "").startswith(UNIT_OF_A_RECORD):
        return []
    hints = typing.get_type_hints(record, localns=_names_of_types(record.__module__))
    names = [field.name for field in dataclasses.fields(record) if is_numeric(hints[field.name])]
    unitless = [name for name in names if not says_its_unit(name) and name not in PURE_NUMBERS]
    return [f"{record.__name__}.{name}" for name in unitless if f"{record.__name__}.{name}" not in PURE_FIELDS]


@pytest.mark.parametrize("module", imported_modules(), ids=lambda module: module.__name__)
def test_public_numbers_carry_a_unit(module):
    assert unitless_fields(module) == []


def test_a_number_without_unit_is_found():
    @dataclasses.dataclass
    class Link:
        bandwidth: float
        latency_s: float
        is_shared: bool
        memory: int | None

    module = types.ModuleType("sample")
    Link.__module__ = "sample"
    module.Link = Link
    assert unitless_fields(module) == ["Link.bandwidth", "Link.memory"]

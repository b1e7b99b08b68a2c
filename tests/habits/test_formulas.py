"""Every published formula names its source and what it assumes, takes keywords only, and shows one number."""

import inspect
from collections.abc import Callable
from types import FunctionType, ModuleType

import pytest

from habits.source_tree import imported_modules

NEEDED = ("Source:", "Assumes:", ">>>")
MODULES = [
    *imported_modules(package="shardwise.formulas"),
    *imported_modules(package="shardwise.course.formulas"),
]


def formulas_of(module: ModuleType) -> list[FunctionType]:
    """Public functions defined in a module."""
    return [
        value
        for name, value in vars(module).items()
        if isinstance(value, FunctionType) and not name.startswith("_") and value.__module__ == module.__name__
    ]


def formula_faults(function: Callable[..., object]) -> list[str]:
    text = inspect.getdoc(function) or ""
    faults = [f"no {word}" for word in NEEDED if word not in text]
    kinds = {parameter.kind for parameter in inspect.signature(function).parameters.values()}
    return faults if kinds <= {inspect.Parameter.KEYWORD_ONLY} else [*faults, "takes positional arguments"]


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_every_formula_is_cited_and_keyword_only(module):
    assert {fn.__name__: formula_faults(fn) for fn in formulas_of(module) if formula_faults(fn)} == {}


def test_there_are_formulas():
    assert sum(len(formulas_of(module)) for module in MODULES) > 10


def test_an_uncited_formula_is_found():
    def bubble(pp, m):
        """The bubble."""
        return pp / m

    assert formula_faults(bubble) == ["no Source:", "no Assumes:", "no >>>", "takes positional arguments"]

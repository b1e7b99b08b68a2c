"""``__all__`` is sorted and names what is there; public functions and classes say what they are."""

import ast
import inspect
from types import ModuleType

import pytest

from habits.source_tree import imported_modules, parsed_files


def sort_key(name: str) -> tuple[int, str]:
    """Constants, then classes, then functions, each by name: the order ruff's RUF022 keeps."""
    return (0 if name.isupper() else 1 if name[:1].isupper() else 2, name)


def export_faults(module: ModuleType) -> list[str]:
    names = list(getattr(module, "__all__", []))
    faults = [f"{name} is not there" for name in names if not hasattr(module, name)]
    return faults if names == sorted(names, key=sort_key) else [*faults, "not sorted"]


def undocumented(tree: ast.Module) -> list[str]:
    return [
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
        and not node.name.startswith("_")
        and ast.get_docstring(node) is None
    ]


@pytest.mark.parametrize("module", imported_modules(), ids=lambda module: module.__name__)
def test_exports_are_sorted_and_complete(module):
    assert export_faults(module) == []


def test_an_unsorted_or_missing_export_is_found():
    module = ModuleType("sample")
    module.beta = module.alpha = 1
    module.__all__ = ["beta", "alpha", "gamma"]
    assert export_faults(module) == ["gamma is not there", "not sorted"]


def test_every_module_says_what_it_holds():
    assert [module.__name__ for module in imported_modules() if not inspect.getdoc(module)] == []


def test_every_public_function_and_class_has_a_docstring():
    assert [f"{path.name}: {name}" for path, tree in parsed_files() for name in undocumented(tree)] == []


def test_a_missing_docstring_is_found():
    assert undocumented(ast.parse("def shown():\n    pass\ndef _hidden():\n    pass")) == ["shown"]

"""The source tree as the habit tests see it: files, parsed modules and imported modules."""

import ast
import importlib
import pkgutil
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import shardwise

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "shardwise"
SURFACES = ("cli", "web")
TRITON_ALONE = "shardwise.train.kernels"
"""Defines kernels in Triton, which CUDA builds of torch bring along and others lack; nothing imports it there."""


def source_files() -> list[Path]:
    """Every Python file of the package."""
    return sorted(SOURCE.rglob("*.py"))


def parsed_files() -> Iterator[tuple[Path, ast.Module]]:
    """Every file of the package with its syntax tree, parsed once for all tests, which only look."""
    for path in source_files():
        yield path, _parsed(path)


@cache
def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def imported_modules(*, package: str = "shardwise") -> list[ModuleType]:
    """Every module of the package (or of a subpackage), imported; ``__main__`` is left out, and absent Triton."""
    names = [info.name for info in pkgutil.walk_packages(shardwise.__path__, prefix="shardwise.")]
    names = [name for name in names if name != TRITON_ALONE or find_spec("triton")]
    wanted = [name for name in ["shardwise", *names] if name == package or name.startswith(f"{package}.")]
    return [importlib.import_module(name) for name in wanted if not name.endswith("__main__")]


def keyword_strings(tree: ast.AST, keyword: str) -> list[str]:
    """Literal strings passed as ``keyword=...`` anywhere in a module."""
    return [
        argument.value.value
        for call in ast.walk(tree)
        if isinstance(call, ast.Call)
        for argument in call.keywords
        if argument.arg == keyword
        and isinstance(argument.value, ast.Constant)
        and isinstance(argument.value.value, str)
    ]

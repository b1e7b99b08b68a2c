"""What torch and transformers do not offer as public is named in two files only, which say what it is for."""

import ast
from collections.abc import Iterator

import pytest

from habits.source_tree import SOURCE, parsed_files

ADAPTERS = ("train/torch_private.py", "train/transformers_private.py")
TRAINER = "train/"
"""The only room that imports them (``test_layers.py``)."""
LIBRARIES = ("torch", "transformers")
OWN = frozenset(("self", "cls"))
OF_PYTHON = frozenset(("_exit", "_replace", "_resource_tracker", "_pid"))
"""Of ``os``, of named tuples, and the process that watches what ``multiprocessing`` leaves behind."""


def is_private(name: str) -> bool:
    """One underscore in front."""
    return name.startswith("_") and not name.startswith("__")


def private_names(tree: ast.Module) -> Iterator[str]:
    """Imports of private names of a library, and private members of whatever is not ``self``."""
    own = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    own |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if _is_of_a_library(alias.name.split(".")))
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = (f"{node.module}.{alias.name}" for alias in node.names)
            yield from (name for name in names if _is_of_a_library(name.split(".")))
        elif isinstance(node, ast.Attribute) and is_private(node.attr):
            is_own = isinstance(node.value, ast.Name) and node.value.id in OWN
            if not is_own and node.attr not in own | OF_PYTHON:
                yield ast.unparse(node)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "setattr", "hasattr"):
            words = [argument.value for argument in node.args if isinstance(argument, ast.Constant)]
            yield from (word for word in words if isinstance(word, str) and is_private(word))


def _is_of_a_library(parts: list[str]) -> bool:
    return parts[0] in LIBRARIES and any(is_private(part) for part in parts)


def test_private_names_of_libraries_stand_in_the_adapters_alone():
    found = {
        place: names
        for path, tree in parsed_files()
        if (place := path.relative_to(SOURCE).as_posix()).startswith(TRAINER)
        and place not in ADAPTERS
        and (names := sorted(set(private_names(tree))))
    }
    assert found == {}


@pytest.mark.parametrize(
    "line",
    [
        "from torch.utils._pytree import tree_map_only",
        "from torch import _foreach_norm as foreach_norm",
        "import torch._dynamo.config as config",
        "torch._scaled_mm(a, b)",
        "torch.ops.aten._scaled_mm",
        "mesh._flatten('shards')",
        "getattr(model, '_keys_to_ignore_on_save', None)",
        "state._comm_ctx.lazy_init = take_current",
    ],
)
def test_a_private_name_is_seen(line):
    assert list(private_names(ast.parse(line)))


def test_own_private_names_and_public_ones_are_not():
    code = "import torch\ndef _own(): ...\nself._kept = torch.ops.aten.mm\nother._kept\nos._exit(1)\nmodule._own()"
    assert not list(private_names(ast.parse(code)))

"""What the package imports is what pyproject.toml asks for: nothing missing, nothing installed in vain."""

import ast
import re
import sys
import tomllib
from pathlib import Path

from habits.source_tree import ROOT, SOURCE, parsed_files

IMPORT_NAMES = {"pyyaml": "yaml"}
"""Distributions whose module has another name."""

COMES_WITH_TORCH = {"triton"}
"""What torch's CUDA builds require themselves, in the version they want."""
OF_ITS_USERS = {"wandb"}
"""What a run imports because its option asks for it; who uses it has it installed."""
COMES_WITH_MCP = {"anyio", "mcp_types"}
"""What the SDK of the Model Context Protocol is built on, and the module of its records."""
RUNTIME = ("measure", "train")
"""Folders that may import what the extras bring."""
SERVER = "mcp_server.py"
"""The file that may import what the extra `mcp` brings."""


def required(*, extras: tuple[str, ...] = ()) -> set[str]:
    """Modules of the distributions that a plain install brings, and those of the named extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [*project["dependencies"]] if not extras else []
    wanted += [requirement for extra in extras for requirement in project["optional-dependencies"][extra]]
    names = [re.split(r"[<>=!~ \[]", requirement)[0].lower() for requirement in wanted]
    return {IMPORT_NAMES.get(name, name) for name in names}


def is_runtime(path: Path) -> bool:
    """Whether a file belongs to the part that runs on PyTorch."""
    return path.relative_to(SOURCE).parts[0] in RUNTIME


def imported(tree: ast.AST) -> set[str]:
    """Top-level modules imported anywhere in a file, standard library and the package itself left out."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found.add(node.module.partition(".")[0])
    return {name for name in found if name not in sys.stdlib_module_names and name != "shardwise"}


def test_what_is_imported_is_what_is_required():
    used = set().union(
        *(imported(tree) for path, tree in parsed_files() if not is_runtime(path) and path.name != SERVER)
    )
    assert used == required() | required(extras=("hub",))


def test_what_the_server_imports_is_in_its_extra():
    (used,) = (imported(tree) for path, tree in parsed_files() if path.name == SERVER)
    assert used == required(extras=("mcp",)) | COMES_WITH_MCP


def test_what_the_runtime_imports_is_in_an_extra():
    used = set().union(*(imported(tree) for path, tree in parsed_files() if is_runtime(path)))
    assert used - required() <= required(extras=("train", "data")) | COMES_WITH_TORCH | OF_ITS_USERS


def test_an_import_that_nobody_asked_for_is_found():
    tree = ast.parse("import torch.nn\nfrom json import loads\nfrom shardwise.plan import Plan")
    assert imported(tree) == {"torch"}
    assert "torch" not in required()

"""Files and functions stay short, folders say what they hold, and only surfaces print."""

import ast
from pathlib import Path

from habits.source_tree import ROOT, SOURCE, SURFACES, parsed_files, source_files

MAX_FILE_LINES = 500
MAX_BODY_LINES = 60
MAX_ARGUMENTS = 6
FORBIDDEN_NAMES = frozenset({"utils", "util", "common", "core", "helpers", "helper", "misc", "base"})


def long_files(paths: list[Path]) -> list[str]:
    counted = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in paths}
    return [f"{path}: {lines} lines" for path, lines in counted.items() if lines > MAX_FILE_LINES]


def body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines from the first statement after the docstring to the end."""
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    if not body or function.end_lineno is None:
        return 0
    return function.end_lineno - body[0].lineno + 1


def functions_of(tree: ast.AST) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def long_functions(tree: ast.AST) -> list[str]:
    return [f"{fn.name}: {body_lines(fn)} lines" for fn in functions_of(tree) if body_lines(fn) > MAX_BODY_LINES]


def forbidden_names(paths: list[Path]) -> list[str]:
    return [str(path) for path in paths if FORBIDDEN_NAMES & {path.stem, *path.parts[:-1]}]


def prints(tree: ast.AST) -> list[int]:
    return [
        call.lineno
        for call in ast.walk(tree)
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "print"
    ]


def test_every_file_is_at_most_500_lines():
    tests_and_tools = [path for folder in ("tests", "benchmarks", "scripts") for path in (ROOT / folder).rglob("*.py")]
    assert long_files([*source_files(), *tests_and_tools]) == []


def test_a_long_file_is_found(tmp_path):
    path = tmp_path / "long.py"
    path.write_text("x = 1\n" * 501, encoding="utf-8")
    assert long_files([path]) == [f"{path}: 501 lines"]


def test_every_function_body_is_at_most_60_lines():
    found = [f"{path.name} {line}" for path, tree in parsed_files() for line in long_functions(tree)]
    assert found == []


def test_a_long_function_is_found():
    lines = "\n".join(f"    x = {n}" for n in range(61))
    assert long_functions(ast.parse(f'def f():\n    """Doc."""\n{lines}')) == ["f: 61 lines"]


def test_no_file_or_folder_is_named_after_nothing():
    assert forbidden_names([path.relative_to(SOURCE) for path in source_files()]) == []


def test_a_folder_named_utils_is_found():
    assert forbidden_names([Path("render/utils/bars.py"), Path("step/common.py"), Path("step/units.py")]) == [
        "render/utils/bars.py",
        "step/common.py",
    ]


def test_only_surfaces_print():
    inner = [(path, tree) for path, tree in parsed_files() if path.relative_to(SOURCE).parts[0] not in SURFACES]
    assert [f"{path.name}:{line}" for path, tree in inner for line in prints(tree)] == []


def test_a_print_is_found():
    assert prints(ast.parse("def f():\n    print(1)")) == [2]

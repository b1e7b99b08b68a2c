"""The notebook shows what its cells answer today: the cells are run by the plain interpreter, without Jupyter.

After a wanted change: ``UPDATE_GOLDEN=1 .venv/bin/pytest tests/habits/test_notebook.py``, then read the diff.
"""

import ast
import io
import json
import os
from contextlib import redirect_stdout
from pathlib import Path

from habits.source_tree import ROOT

NOTEBOOK = ROOT / "examples" / "front_door.ipynb"


def shown(source: str, names: dict[str, object]) -> str:
    """What a cell prints, and its last expression as a prompt shows it."""
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    printed = io.StringIO()
    with redirect_stdout(printed):
        exec(compile(tree, "cell", "exec"), names)
        value = None if last is None else eval(compile(ast.Expression(last.value), "cell", "eval"), names)
    return printed.getvalue() if value is None else printed.getvalue() + repr(value) + "\n"


def stored(cell: dict) -> str:
    return "".join(text for output in cell["outputs"] for text in output["text"])


def run(path: Path) -> list[tuple[dict, str]]:
    """Every code cell with what it shows now."""
    names: dict[str, object] = {}
    cells = [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
    return [(cell, shown("".join(cell["source"]), names)) for cell in cells]


def refresh(path: Path) -> None:
    """Write what the cells show now under them."""
    now = iter([text for _, text in run(path)])
    notebook = json.loads(path.read_text(encoding="utf-8"))
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            text = next(now).splitlines(keepends=True)
            cell["outputs"] = [{"name": "stdout", "output_type": "stream", "text": text}] if text else []
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def test_every_cell_of_the_notebook_shows_what_it_answers():
    if os.environ.get("UPDATE_GOLDEN"):
        refresh(NOTEBOOK)
    cells = run(NOTEBOOK)
    assert len(cells) >= 8
    assert [("".join(cell["source"]), text) for cell, text in cells if stored(cell) != text] == []


def test_a_cell_that_shows_something_else_is_found(tmp_path):
    path = tmp_path / "sample.ipynb"
    cell = {"cell_type": "code", "source": ["print(1)\n", "2"], "outputs": []}
    path.write_text(json.dumps({"cells": [cell]}), encoding="utf-8")
    (only,) = run(path)
    assert stored(only[0]) != only[1] == "1\n2\n"
    refresh(path)
    (only,) = run(path)
    assert stored(only[0]) == only[1]

"""A docstring says what it is about: it does not begin with words whose subject stands elsewhere."""

import ast

from habits.source_tree import SOURCE, parsed_files

OPENINGS = ("Of ", "That of ", "The same", "Those ")
"""Words that lean on the name above them or on the docstring before: ``Of the step.``, ``Those of the model.``"""
Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def docstrings(tree: ast.Module) -> list[tuple[int, str]]:
    """Line and text of every string that stands as a statement: of modules, classes, functions, fields, constants."""
    return [
        (statement.lineno, statement.value.value)
        for node in ast.walk(tree)
        if isinstance(node, Documented)
        for statement in node.body
        if isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    ]


def fragments(tree: ast.Module) -> list[str]:
    return [f"{line}: {text.splitlines()[0]}" for line, text in docstrings(tree) if text.startswith(OPENINGS)]


def test_no_docstring_leaves_its_subject_out():
    named = ((path.relative_to(SOURCE).as_posix(), tree) for path, tree in parsed_files())
    assert [f"{name}:{found}" for name, tree in named for found in fragments(tree)] == []


def test_docstrings_without_a_subject_are_found():
    source = '''"""The same for modules."""
SHARE = 0.5
"""Of the step."""
class Step:
    """One step of a run."""
    num_bytes: int
    """Those of one call."""
    def total(self):
        """That of all calls."""
'''
    assert fragments(ast.parse(source)) == [
        "1: The same for modules.",
        "3: Of the step.",
        "7: Those of one call.",
        "9: That of all calls.",
    ]

"""A test that waits ends what hangs, and measures nothing: its limit is far beyond what a slow, busy machine takes."""

import ast
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
LEAST_S = 300
"""What takes five seconds on a quiet machine took four minutes where twenty processes shared two cores."""


def short_limits(text: str) -> list[int]:
    """Lines that wait for at most so many seconds, where that is a number below the least."""
    return [
        keyword.value.lineno
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call)
        for keyword in node.keywords
        if keyword.arg == "timeout" and isinstance(keyword.value, ast.Constant)
        if isinstance(keyword.value.value, int | float) and keyword.value.value < LEAST_S
    ]


@pytest.mark.parametrize("path", sorted(TESTS.rglob("*.py")), ids=lambda path: str(path.relative_to(TESTS)))
def test_a_limit_leaves_time_for_a_busy_machine(path):
    lines = short_limits(path.read_text(encoding="utf-8"))
    assert lines == [], f"wait {LEAST_S} s or more, as launch.desk.LIMIT_S does; wait for a state and not for a time"


@pytest.mark.parametrize(
    ("text", "lines"),
    [("process.wait(timeout=60)", [1]), ("run(words, timeout=LIMIT_S)", []), ("join(\n    timeout=300)", [])],
)
def test_a_short_limit_would_be_found(text, lines):
    assert short_limits(text) == lines

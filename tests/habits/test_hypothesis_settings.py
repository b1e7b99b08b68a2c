"""One hypothesis profile for all tests, in tests/conftest.py: no test has a deadline unless a comment says why."""

import ast
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

TESTS = Path(__file__).resolve().parents[1]
PROFILE = TESTS / "conftest.py"
TEST_FILES = [path for path in sorted(TESTS.rglob("*.py")) if path != PROFILE]
ON_PURPOSE = "# a deadline on purpose:"


def own_deadlines(text: str) -> list[int]:
    """Lines that set a deadline, or make or load a profile, without saying why."""
    lines = text.splitlines()
    return [
        node.lineno
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call)
        and (_called(node).endswith("_profile") or any(keyword.arg == "deadline" for keyword in node.keywords))
        and ON_PURPOSE not in "".join(lines[node.lineno - 1 : node.end_lineno])
    ]


def _called(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else ""


def test_the_profile_is_in_force():
    assert settings.get_current_profile_name() == "shardwise"
    assert settings().deadline is None
    assert settings(max_examples=3).deadline is None
    assert HealthCheck.too_slow in settings().suppress_health_check


def test_the_profile_lies_above_every_test_file():
    """pytest loads a conftest before the files of its folder and of those below it."""
    assert len(TEST_FILES) > 100
    assert "load_profile" in PROFILE.read_text(encoding="utf-8")


@pytest.mark.parametrize("path", TEST_FILES, ids=lambda path: str(path.relative_to(TESTS)))
def test_no_test_sets_its_own_deadline(path):
    assert own_deadlines(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("@settings(max_examples=3, deadline=None)\ndef test_it(): ...", [1]),
        ("FUZZ = settings(\n    deadline=20_000,\n)", [1]),
        ("settings.load_profile('mine')", [1]),
        ("FUZZ = settings(deadline=5)  # a deadline on purpose: the answer has to come while a person waits", []),
        ("@settings(max_examples=3)\ndef test_it(): ...", []),
    ],
)
def test_a_deadline_of_its_own_would_be_found(text, lines):
    assert own_deadlines(text) == lines

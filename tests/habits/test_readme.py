"""The sessions shown in the README are what the program prints today.

After a wanted change: ``UPDATE_GOLDEN=1 .venv/bin/pytest tests/habits/test_readme.py``, then read the diff.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from habits.source_tree import ROOT

README = ROOT / "README.md"
SESSION = re.compile(r"```console\n\$ (?P<command>[^\n]*)\n(?P<shown>.*?)```", flags=re.DOTALL)


def printed(command: str) -> str:
    """Both outputs of a command line, with the program of this environment first on the path."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=ROOT,
        env={**os.environ, "PATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.stdout


def sessions(text: str) -> list[tuple[str, str]]:
    return [(found["command"], found["shown"]) for found in SESSION.finditer(text)]


def refreshed(text: str) -> str:
    """The page with every session's output replaced by today's."""
    return SESSION.sub(lambda found: f"```console\n$ {found['command']}\n{printed(found['command'])}```", text)


@pytest.fixture(scope="module")
def page() -> str:
    text = README.read_text(encoding="utf-8")
    if os.environ.get("UPDATE_GOLDEN"):
        text = refreshed(text)
        README.write_text(text, encoding="utf-8")
    return text


def test_every_session_shows_what_the_program_prints(page):
    shown = sessions(page)
    assert len(shown) >= 3
    assert [command for command, output in shown if output != printed(command)] == []


def test_a_session_that_is_out_of_date_is_found():
    (command, output), *_ = sessions("```console\n$ shardwise --version\nshardwise 0.0.0\n```\n")
    assert output != printed(command)
    assert printed(command) == "shardwise 0.1.0\n"

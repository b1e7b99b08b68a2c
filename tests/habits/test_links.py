"""No link is committed: one that leads to an environment or a folder of one machine replaces another's there."""

import subprocess

import pytest

from habits.source_tree import ROOT

LINK = "120000 "
"""What git writes before a symbolic link."""


def links(listed: str) -> list[str]:
    return [line.partition("\t")[2] for line in listed.splitlines() if line.startswith(LINK)]


def test_no_link_is_committed():
    listed = subprocess.run(["git", "ls-files", "--stage"], cwd=ROOT, check=False, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("this tree is no checkout")
    assert links(listed.stdout) == []


def test_a_committed_link_is_found():
    assert links("100644 84a5 0\tMakefile\n120000 84a5 0\t.venv\n") == [".venv"]

"""Examples are programs with approved output, so that documentation cannot rot."""

import subprocess
import sys
from pathlib import Path

import pytest

from habits.source_tree import ROOT
from launch.desk import LIMIT_S

RUN_ELSEWHERE = ("lab_checkpointing.py",)
"""Its real runs are those that ``tests/course/labs/test_real_labs.py`` looks at."""
EXAMPLES = sorted(path for path in (ROOT / "examples").glob("*.py") if path.name not in RUN_ELSEWHERE)


def printed(program: Path) -> str:
    """What an example prints, run from the folder it lies in."""
    done = subprocess.run(
        [sys.executable, program.name], cwd=program.parent, capture_output=True, text=True, check=False, timeout=LIMIT_S
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def differs(program: Path) -> bool:
    return printed(program) != program.with_suffix(".out").read_text(encoding="utf-8")


def test_there_are_examples():
    assert EXAMPLES


@pytest.mark.parametrize("program", EXAMPLES, ids=lambda path: path.name)
def test_an_example_prints_its_approved_output(program):
    assert not differs(program), f"run {program.name} and compare with {program.with_suffix('.out').name}"


def test_an_example_that_prints_something_else_is_found(tmp_path):
    program = tmp_path / "sample.py"
    program.write_text("print('now')", encoding="utf-8")
    program.with_suffix(".out").write_text("then\n", encoding="utf-8")
    assert differs(program)

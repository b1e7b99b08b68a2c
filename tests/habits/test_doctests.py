"""Every number shown in a docstring is what the program computes."""

import doctest
from pathlib import Path

import pytest

from habits.source_tree import ROOT, imported_modules

MODULES = [module for module in imported_modules() if ">>>" in Path(module.__file__).read_text(encoding="utf-8")]


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_the_examples_in_docstrings_hold(module):
    result = doctest.testmod(module)
    assert result.attempted > 0
    assert result.failed == 0


PAGES = [
    page for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))) if ">>>" in page.read_text("utf-8")
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_examples_in_pages_hold(page):
    result = doctest.testfile(str(page), module_relative=False)
    assert result.attempted > 0
    assert result.failed == 0


def test_a_wrong_example_is_found(tmp_path):
    path = tmp_path / "sample.txt"
    path.write_text(">>> 1 + 1\n3\n", encoding="utf-8")
    assert doctest.testfile(str(path), module_relative=False, report=False, verbose=False).failed == 1

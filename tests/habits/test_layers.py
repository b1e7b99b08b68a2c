"""Imports point down, and planning imports no torch: the contracts of pyproject.toml, checked by import-linter."""

import subprocess
import sys
from pathlib import Path

import pytest

from habits.source_tree import ROOT

LINT_IMPORTS = Path(sys.executable).with_name("lint-imports")
UPSIDE_DOWN = """\
[importlinter]
root_package = shardwise

[importlinter:contract:upside-down]
name = Units may not be imported by anybody
type = layers
layers =
    shardwise.units
    shardwise.render
"""


def lint(config: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [LINT_IMPORTS, "--config", config, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False
    )


@pytest.fixture(autouse=True)
def _needs_import_linter():
    if not LINT_IMPORTS.exists():
        pytest.skip("import-linter is not installed beside this Python")


def test_every_import_contract_is_kept():
    done = lint(ROOT / "pyproject.toml")
    assert done.returncode == 0, done.stdout


def test_a_broken_contract_is_found(tmp_path):
    config = tmp_path / "contracts.ini"
    config.write_text(UPSIDE_DOWN, encoding="utf-8")
    done = lint(config)
    assert done.returncode == 1
    assert "1 broken" in done.stdout

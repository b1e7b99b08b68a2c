"""Planning starts fast and never imports torch, nor anything that only training needs."""

import subprocess
import sys

import pytest

HEAVY = ("torch", "transformers", "pandas", "scipy", "matplotlib", "fastapi")
HEAVY_FOR_HELP = (*HEAVY, "numpy", "pydantic", "rich", "yaml", "typer", "click")

CALL_MAIN = "import sys, shardwise.cli.main as m; m.main({words!r})"


def modules_after(code: str) -> set[str]:
    """Top-level modules loaded once ``code`` ran in a process of its own."""
    report = "import sys; print('LOADED', *{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", f"{code}\n{report}"], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split()[1:])


@pytest.mark.parametrize("code", ["import shardwise", "import shardwise.predict, shardwise.search, shardwise.explain"])
def test_importing_shardwise_imports_no_torch(code):
    assert modules_after(code).isdisjoint(HEAVY)


def test_help_imports_nothing_heavy():
    assert modules_after(CALL_MAIN.format(words=["--help"])).isdisjoint(HEAVY_FOR_HELP)


@pytest.mark.parametrize("command", ["plan", "predict", "explain", "cost", "catalog", "validate"])
def test_help_of_a_command_imports_nothing_heavy(command):
    code = f"try:\n    {CALL_MAIN.format(words=[command, '--help'])}\nexcept SystemExit: pass"
    assert modules_after(code).isdisjoint(HEAVY)


def test_predicting_imports_no_torch_and_no_tables():
    words = ["predict", "llama-3.1-8b", "8xh100-sxm", "--dp-shard", "8", "--json"]
    loaded = modules_after(CALL_MAIN.format(words=words))
    assert loaded.isdisjoint((*HEAVY, "rich"))


def test_the_check_sees_a_heavy_module(tmp_path, monkeypatch):
    """The twin: a module named torch that is imported must be reported."""
    (tmp_path / "torch.py").write_text("", encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert "torch" in modules_after("import torch")

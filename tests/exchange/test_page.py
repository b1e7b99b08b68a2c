"""The example of docs/exchange.md is what the program says."""

import re

import pytest

from habits.source_tree import ROOT
from shardwise.cli.main import main

PAGE = ROOT / "docs" / "exchange.md"


@pytest.fixture
def example(tmp_path, monkeypatch):
    """The two files of the page, in a folder of their own."""
    page = PAGE.read_text(encoding="utf-8")
    blocks = dict(re.findall(r"```(json|yaml|console)\n(.*?)```", page, flags=re.DOTALL))
    (tmp_path / "ds.json").write_text(blocks["json"], encoding="utf-8")
    (tmp_path / "args.yaml").write_text(blocks["yaml"], encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return blocks["console"]


def test_the_session_of_the_page_is_what_the_program_prints(example, capsys):
    command, _, shown = example.partition("\n")
    assert main(command.split()[2:]) == 0
    assert capsys.readouterr().out == shown


def test_the_files_of_the_page_stand_where_a_plan_stands(example, capsys):
    words = ["args.yaml", "--model", "llama-2-7b", "--cluster", "8xa100-sxm-80", "--seq-len", "4096", "--json"]
    assert main(["predict", "ds.json", *words, "--recompute", "full"]) == 2
    assert '"import-contradiction"' in capsys.readouterr().out
    assert main(["predict", "ds.json", *words, "--recompute", "full", "--global-batch-size", "128"]) in (0, 3)
    assert '"shardwise.prediction/1"' in capsys.readouterr().out

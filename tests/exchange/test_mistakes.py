"""Every kind of mistake is shown by a file, and is no longer told once the file is mended; the page lists them all."""

import json
import tomllib
from pathlib import Path

import pytest

from habits.source_tree import ROOT
from shardwise.exchange import read_files
from shardwise.exchange.mistakes import CONDITIONS, find_mistakes, load_kinds
from shardwise.exchange.mistakes.page import mistakes_page

FOLDER = Path(__file__).parent
SHOWN = tomllib.loads((FOLDER / "mistakes.toml").read_text(encoding="utf-8"))["mistake"]
IN_CASES = {json.loads(line)["mistake"] for line in (FOLDER / "cases.jsonl").read_text(encoding="utf-8").splitlines()}


def found_in(text, shown, folder):
    files = [{"name": shown["file"], "text": text}, *([shown["beside"]] if "beside" in shown else [])]
    for file in files:
        (folder / file["name"]).write_text(file["text"], encoding="utf-8")
    return find_mistakes(read_files([folder / file["name"] for file in files]))


@pytest.mark.parametrize("shown", SHOWN, ids=lambda shown: shown["code"])
def test_a_mistake_is_told_until_it_is_mended(shown, tmp_path):
    assert shown["wrong"] in shown["text"]
    found = found_in(shown["text"], shown, tmp_path)
    assert shown["code"] in {one.code for one in found}
    assert all(one.what and one.fix and one.place for one in found)
    mended = found_in(shown["text"].replace(shown["wrong"], shown["right"]), shown, tmp_path)
    assert shown["code"] not in {one.code for one in mended}


def test_every_kind_is_shown_by_a_file_and_has_a_condition():
    kinds = {kind.code for kind in load_kinds()}
    assert kinds == {code for code, _ in CONDITIONS}
    assert kinds - {shown["code"] for shown in SHOWN} - IN_CASES == set()


def test_the_page_is_made_from_the_table():
    """`python -m shardwise.exchange.mistakes.page > docs/mistakes.md` writes it."""
    assert (ROOT / "docs" / "mistakes.md").read_text(encoding="utf-8") == mistakes_page()


def test_a_recipe_in_python_is_not_blamed_for_degrees_that_it_sets_itself(tmp_path):
    line = "torchrun --nproc_per_node 8 run_recipe.py --recipe {} model.seq_length=4096 train.micro_batch_size=1"
    shown = {"file": "train.sh"}
    batch = " train.global_batch_size=4 model.pipeline_model_parallel_size=1"
    assert found_in(line.format("r1") + batch, shown, tmp_path) == ()
    without = line.replace("--recipe {} ", "") + batch
    assert {one.code for one in found_in(without, shown, tmp_path)} == {"batch-not-whole"}

"""The recipes of ``examples/recipes``: they say what they need in full size, and run as they are on tiny models."""

import json
import os
import re
import subprocess
import sys

import pytest

from launch.desk import LIMIT_S
from recipes import NAMES, RECIPES, lay_out, tiny_words
from shardwise.cli.main import main

PAGE = RECIPES.parents[1] / "docs" / "recipes.md"


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_says_what_it_needs_as_predict_does(name, capsys):
    assert main(["predict", str(RECIPES / f"{name}.yaml")]) == 0
    verdict = capsys.readouterr().out.splitlines()[0]
    assert verdict.startswith("It fits: ")
    assert f"#   {verdict}" in (RECIPES / f"{name}.yaml").read_text(encoding="utf-8").splitlines()
    needed, capacity = re.findall(r"([\d.]+) GiB", verdict)[:2]
    (row,) = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith(f"| `{name}.yaml`")]
    assert row.endswith(f"| {needed} of {capacity} GiB |")


def test_there_is_no_recipe_that_nobody_runs():
    assert sorted(path.stem for path in RECIPES.glob("*.yaml")) == sorted(NAMES)


@pytest.fixture(scope="module")
def desk(tmp_path_factory):
    return lay_out(tmp_path_factory.mktemp("recipes"))


def command(desk, *words):
    environment = {**os.environ, "XDG_CACHE_HOME": str(desk / "cache"), "GLOO_SOCKET_IFNAME": "lo"}
    full = [sys.executable, "-m", "shardwise", "train", *map(str, words), "--json"]
    done = subprocess.run(full, cwd=desk, env=environment, capture_output=True, text=True, check=False, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr + done.stdout
    return json.loads(done.stdout), done.stderr


@pytest.mark.runs
@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_runs_as_it_is_on_a_tiny_model(desk, name):
    """Steps and intervals of checkpoints are cut short; all else is the file's. A resume needs its folder alone."""
    layout = {"ep": 2} if "moe" in name else {}
    count = 1 if "one" in name else 2
    words = [*tiny_words(name, count=count, **layout), "--steps", "2", "--checkpoint-every", "2"]
    words += ["--profile-every", "2"] if "continued" in name else []
    words += ["--decay-steps", "1"] if "continued" in name else []
    answer, said = command(desk, *words, "--out", name)
    assert "--seq-len is taken instead of plan.recipe.seq_len" in said
    assert len(answer["measurement"]["steps"]) == 2
    again, _ = command(desk, "--resume", name, "--steps", "3", "--out", f"{name}-more")
    assert [step["step"] for step in again["measurement"]["steps"]] == [3]
    kept = json.loads((desk / f"{name}-more" / "recipe.json").read_text(encoding="utf-8"))
    assert kept["run"] == {"device": "cpu", "steps": 3, "out": str(desk / f"{name}-more")}
    assert kept["data"]["data"] == [str(RECIPES / ("dialogues.jsonl" if "moe" in name else "corpus.jsonl"))]
